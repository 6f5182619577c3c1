import type { Sql } from '../database/connect.ts'
import { deleteEntriesBefore } from '../domain/audit.ts'
import { deleteExpiredKeys } from '../domain/idempotency.ts'
import { deleteIdleLines } from '../domain/lines.ts'
import { forgetClients } from '../domain/pull-clients.ts'
import { takeBack } from '../domain/pull-time.ts'
import { deleteExpiredSignatures, forgetSignatures } from '../domain/used-signatures.ts'
import { deleteVersionsBefore } from '../domain/webhook-versions.ts'
import { forgetProcesses } from '../keys/master-keys.ts'
import { deleteRetiredKeys } from '../keys/signing-keys.ts'
import type { Step } from './step.ts'

const ROWS = 500

const DAY_MS = 24 * 3600 * 1000

type Kept = { retentionDays: number; auditDays: number }
type Delete = (sql: Sql, now: number, limit: number, kept: Kept) => Promise<number>

const leftovers = (name: string, deleteSome: Delete, everyMs = 30_000): Step => ({
  name,
  everyMs,
  largestPart: 1 / 10,
  begin:
    ({ database, clock, retentionDays, auditDays = 90 }) =>
    async () =>
      (await deleteSome(database.knex, clock.now(), ROWS, { retentionDays, auditDays })) > 0,
})

/** Deletes the marks of signatures that the clock window now refuses. */
export const forgetSignaturesUsed = leftovers('forget signatures', forgetSignatures)

/** Deletes the marks of the previous version in the same way. */
export const deleteSignatures = leftovers('delete signatures', deleteExpiredSignatures)

/** Deletes expired idempotency keys. */
export const deleteKeys = leftovers('delete idempotency keys', deleteExpiredKeys)

/** Deletes lines of ordered deliveries that have long been empty. */
export const deleteLines = leftovers(
  'delete idle lines',
  (sql, now, limit, { retentionDays }) => deleteIdleLines(sql, now - retentionDays * DAY_MS, limit),
  600_000,
)

/** Deletes what webhooks were before the oldest event. */
export const deleteVersions = leftovers(
  'delete webhook versions',
  (sql, now, limit, { retentionDays }) => deleteVersionsBefore(sql, now - retentionDays * DAY_MS, limit),
  600_000,
)

/** Makes due what a process of an earlier version could not send as its webhook wants it. */
export const takeBackDeliveries = leftovers('take back deliveries', takeBack, 5_000)

/** Deletes entries of the audit log past their retention. */
export const deleteAuditEntries = leftovers('delete audit entries', (sql, now, limit, { auditDays }) =>
  deleteEntriesBefore(sql, now - auditDays * DAY_MS, limit),
)

/** Deletes signing keys that no receiver needs, and the records of dead processes and of the clients at them. */
export const tidyKeys: Step = {
  name: 'tidy keys',
  everyMs: 30_000,
  largestPart: 1 / 10,
  begin:
    ({ database, clock }) =>
    async () => {
      await deleteRetiredKeys(database.knex, clock.now())
      await forgetProcesses(database.knex)
      await forgetClients(database.knex)
      return false
    },
}
