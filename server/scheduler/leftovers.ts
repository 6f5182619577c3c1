import type { Sql } from '../database/connect.ts'
import { deleteExpiredKeys } from '../domain/idempotency.ts'
import { deleteIdleLines } from '../domain/lines.ts'
import { deleteExpiredSignatures } from '../domain/used-signatures.ts'
import type { Step } from './step.ts'

const ROWS = 500

const DAY_MS = 24 * 3600 * 1000

type Delete = (sql: Sql, now: number, limit: number, retentionDays: number) => Promise<number>

const leftovers = (name: string, deleteSome: Delete, everyMs = 30_000): Step => ({
  name,
  everyMs,
  largestPart: 1 / 10,
  begin:
    ({ database, clock, retentionDays }) =>
    async () =>
      (await deleteSome(database.knex, clock.now(), ROWS, retentionDays)) > 0,
})

/** Deletes signatures that the clock window keeps out by now. */
export const deleteSignatures = leftovers('delete signatures', deleteExpiredSignatures)

/** Deletes idempotency keys whose time is over. */
export const deleteKeys = leftovers('delete idempotency keys', deleteExpiredKeys)

/** Deletes the lines of ordered deliveries that nobody has stood in for long. */
export const deleteLines = leftovers(
  'delete idle lines',
  (sql, now, limit, retentionDays) => deleteIdleLines(sql, now - retentionDays * DAY_MS, limit),
  600_000,
)
