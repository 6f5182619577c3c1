import type { Knex } from 'knex'
import type { Transaction } from '../database/transaction.ts'
import type { AfterCommit } from './deliveries.ts'
import type { AccessToken } from './permissions.ts'

/**
 * What a rule needs for a change: the transaction, the caller's token, whose row the transaction has locked, and the
 * time. A rule decides on rows that it has locked, and reads the time after it has locked them, so that whatever it
 * waited for is earlier. `afterCommit` may send what the rule queues.
 */
export type Change = { trx: Transaction; token: AccessToken; now: () => number; afterCommit?: AfterCommit }

/**
 * The rows that a change is decided on, read and locked by one statement with the row `t` of the caller's token:
 * columns (each begins with a comma) of a `Row`, from joins. Rows of a subquery or derived table are read but not
 * locked.
 */
export type Beside<Row extends object> = {
  columns: string
  joins: string
  /** The bindings of both, in this order. */
  bindings: Knex.RawBinding[]
  /** Has no value: it only carries the type of a row. */
  row?: Row
}
