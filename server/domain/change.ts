import type { Knex } from 'knex'
import type { Courier } from './deliveries.ts'
import type { AccessToken } from './permissions.ts'

/**
 * What a rule needs to change something: the transaction it happens in, who asks,
 * whose row the transaction holds, and the time. A rule decides on rows that it holds,
 * and reads the time when it holds them: what it waited for has happened before. What it
 * queues, the courier may send when the transaction is committed.
 */
export type Change = { trx: Knex.Transaction; token: AccessToken; now: () => number; courier?: Courier }

/**
 * What a change is decided on, read and held in one statement with the row `t` of the caller's token: columns (each
 * begins with a comma) of a `Row`, from joins. What is in a subquery or a derived table is read and not held.
 */
export type Beside<Row extends object> = {
  columns: string
  joins: string
  /** Of both, in this order. */
  bindings: Knex.RawBinding[]
  /** Nothing: it says what a row of it is. */
  row?: Row
}
