import type { Sql } from '../database/connect.ts'
import { deleteExpiredKeys } from '../domain/idempotency.ts'
import { deleteExpiredSignatures } from '../domain/used-signatures.ts'
import type { Step } from './step.ts'

const ROWS = 500

type Delete = (sql: Sql, now: number, limit: number) => Promise<number>

const leftovers = (name: string, deleteSome: Delete): Step => ({
  name,
  everyMs: 30_000,
  largestPart: 1 / 10,
  begin:
    ({ database, clock }) =>
    async () =>
      (await deleteSome(database.knex, clock.now(), ROWS)) > 0,
})

/** Deletes signatures that the clock window keeps out by now. */
export const deleteSignatures = leftovers('delete signatures', deleteExpiredSignatures)

/** Deletes idempotency keys whose time is over. */
export const deleteKeys = leftovers('delete idempotency keys', deleteExpiredKeys)
