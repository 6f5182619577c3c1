import type { Knex } from 'knex'
import type { AccessToken } from './permissions.ts'

/** What a rule needs to change something: the transaction it happens in, who asks, and when. */
export type Change = { trx: Knex.Transaction; token: AccessToken; now: number }
