import type { Knex } from 'knex'
import type { Clock } from '../clock.ts'
import { type Database, marks, rows, run } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import { deleteEntriesBefore } from '../domain/audit.ts'
import { recordEvent } from '../domain/events.ts'
import { deleteExpiredKeys } from '../domain/idempotency.ts'
import { deleteIdleLines } from '../domain/lines.ts'
import { openReports } from '../domain/project-reports.ts'
import { lockProject } from '../domain/projects.ts'
import { dateOf, quarterBefore } from '../domain/quarters.ts'
import type { ProjectReportRow } from '../domain/resources.ts'
import { deleteExpiredSignatures, forgetSignatures } from '../domain/used-signatures.ts'
import { purgeWebhooks } from '../domain/webhooks.ts'
import { forgetProcesses } from '../keys/master-keys.ts'
import { deleteRetiredKeys } from '../keys/signing-keys.ts'
import type { Log } from '../log.ts'

const EVERY_MS = 30_000
/** Where there is so much to look at that a round takes long, it takes this part of the time at most. */
const LARGEST_PART = 1 / 20
/** Rows of one transaction or statement: small, so that deliveries are not disturbed. */
const BATCH = 200
const DAY_MS = 24 * 3600 * 1000

type Tools = {
  database: Database
  clock: Clock
  log: Log
  reportDueDays: number
  retentionDays: number
  /** 90 unless given. */
  auditDays?: number
  /** Told when events have been written. */
  onEvents: () => void
  /** Told of each step that was done, or has failed. */
  onStep?: (name: string, isDone: boolean) => void
}

/**
 * What happens because time passes. Each step can be run by any number of processes at once, and again: a row is
 * changed, and its event written, in one transaction that only one of them wins.
 */
export const startScheduler = (tools: Tools): { stop(): Promise<void> } => {
  let stopping = false
  let timer: NodeJS.Timeout | undefined
  const round = async (): Promise<void> => {
    const started = performance.now()
    await runSchedule(tools, () => stopping)
    const pauseMs = Math.max(EVERY_MS, (performance.now() - started) / LARGEST_PART)
    if (!stopping) timer = setTimeout(() => (current = round()), pauseMs)
  }
  let current = round()
  return {
    async stop() {
      stopping = true
      clearTimeout(timer)
      await current
    },
  }
}

/** All steps once. One that fails is tried again in the next round, and keeps none of the others back. */
export const runSchedule = async (tools: Tools, isStopping: () => boolean = () => false): Promise<void> => {
  for (const step of [
    openReportsOfQuarter,
    findOverdue,
    findExpired,
    deleteSignatures,
    deleteKeys,
    tidyKeys,
    purgeAuditLog,
    deleteLines,
    purge,
    purgeDeleted,
  ]) {
    try {
      await step(tools, isStopping)
      tools.onStep?.(step.name, true)
    } catch (error) {
      tools.onStep?.(step.name, false)
      tools.log.error({ err: error, step: step.name }, 'the schedule could not be kept; trying again')
    }
  }
}

/** Works in batches until nothing is left, or the process stops. */
type Step = (tools: Tools, isStopping: () => boolean) => Promise<void>

/** Opens the report of the quarter just ended for every project that has none. */
const openReportsOfQuarter: Step = async ({ database, clock, reportDueDays }, isStopping) => {
  const now = clock.now()
  const quarter = quarterBefore(now)
  let after = ''
  while (!isStopping()) {
    const without = await rows<{ id: string }>(
      database.knex,
      `SELECT p.id FROM projects p LEFT JOIN project_reports r ON r.project_id = p.id AND r.quarter = ?
       WHERE p.id > ? AND r.id IS NULL ORDER BY p.id LIMIT ?`,
      [quarter, after, BATCH],
    )
    if (without.length === 0) return
    const projectIds = without.map(({ id }) => id)
    await database.transaction(trx => openReports(trx, { projectIds, quarter, dueDays: reportDueDays, now }))
    after = projectIds.at(-1)!
  }
}

/** Emits `project_report_quarterly_overdue`, once, for each report that is open after its due date. */
const findOverdue: Step = async ({ database, clock, onEvents }, isStopping) => {
  const now = clock.now()
  while (!isStopping()) {
    const late = await rows<ProjectReportRow>(
      database.knex,
      `SELECT * FROM project_reports WHERE status = 'open' AND overdue_at IS NULL AND due_date < ? LIMIT ?`,
      [dateOf(now), BATCH],
    )
    if (late.length === 0) return
    for (const report of late) {
      await database.transaction(async trx => {
        // Its organisation is told that it is in when this is committed.
        const project = await lockProject(trx, report.project_id, 'forShare')
        const overdueAt = clock.now()
        const won = await run(
          trx,
          "UPDATE project_reports SET overdue_at = ?, updated_at = ? WHERE id = ? AND status = 'open' " +
            'AND overdue_at IS NULL',
          [overdueAt, overdueAt, report.id],
        )
        if (won === 0) return
        const { id, project_id: projectId, quarter } = report
        await recordEvent(
          trx,
          {
            type: 'project_report_quarterly_overdue',
            organisationIds: [project!.organisation_id],
            projectId,
            payload: { projectReport: { id, projectId, quarter } },
          },
          clock.now,
        )
      })
    }
    onEvents()
  }
}

/** Before it expired: a token that is revoked afterwards has expired all the same. */
const NOT_REVOKED = '(revoked_at IS NULL OR revoked_at > expires_at)'

/** Emits `token_expired`, once, for each access token whose time has come. A revoked token emits none. */
const findExpired: Step = async ({ database, clock, onEvents }, isStopping) => {
  const now = clock.now()
  while (!isStopping()) {
    const expired = await rows<{ id: string; sees_all_organisations: number }>(
      database.knex,
      `SELECT id, sees_all_organisations FROM access_tokens
     WHERE expires_at <= ? AND expiry_event_at IS NULL AND ${NOT_REVOKED} LIMIT ?`,
      [now, BATCH],
    )
    if (expired.length === 0) return
    for (const { id, sees_all_organisations } of expired) {
      await database.transaction(async trx => {
        const won = await run(
          trx,
          `UPDATE access_tokens SET expiry_event_at = ? WHERE id = ? AND expiry_event_at IS NULL AND ${NOT_REVOKED}`,
          [now, id],
        )
        if (won === 0) return
        const seen = await rows<{ organisation_id: string }>(
          trx,
          'SELECT organisation_id FROM access_token_organisations WHERE access_token_id = ?',
          [id],
        )
        await recordEvent(
          trx,
          {
            type: 'token_expired',
            organisationIds: sees_all_organisations === 1 ? 'all' : seen.map(row => row.organisation_id),
            payload: { accessTokenId: id },
          },
          clock.now,
        )
      })
    }
    onEvents()
  }
}

/** Forgets signatures that the clock window keeps out by now. */
const deleteSignatures: Step = async ({ database, clock }, isStopping) => {
  while (!isStopping() && (await forgetSignatures(database.knex, clock.now(), BATCH)) > 0);
  while (!isStopping() && (await deleteExpiredSignatures(database.knex, clock.now(), BATCH)) > 0);
}

/** Deletes idempotency keys whose time is over. */
const deleteKeys: Step = async ({ database, clock }, isStopping) => {
  while (!isStopping() && (await deleteExpiredKeys(database.knex, clock.now(), BATCH)) > 0);
}

const purgeAuditLog: Step = async ({ database, clock, auditDays = 90 }, isStopping) => {
  const before = clock.now() - auditDays * DAY_MS
  while (!isStopping() && (await deleteEntriesBefore(database.knex, before, BATCH)) > 0);
}

/** Deletes signing keys that no receiver needs, and what dead processes have said of themselves. */
const tidyKeys: Step = async ({ database, clock }) => {
  await deleteRetiredKeys(database.knex, clock.now())
  await forgetProcesses(database.knex)
}

/** Deletes the lines of ordered deliveries that nobody has stood in for long. */
const deleteLines: Step = async ({ database, clock, retentionDays }, isStopping) => {
  const before = clock.now() - retentionDays * DAY_MS
  while (!isStopping() && (await deleteIdleLines(database.knex, before, BATCH)) > 0);
}

/** Deletes events past their retention with their deliveries, except where one is still owed. */
const purge: Step = async ({ database, clock, retentionDays }, isStopping) => {
  const before = clock.now() - retentionDays * DAY_MS
  while (!isStopping()) {
    const old = await rows<{ id: string; deliveries: number }>(
      database.knex,
      `SELECT id, (SELECT COUNT(*) FROM deliveries d WHERE d.event_id = e.id) AS deliveries FROM events e
       WHERE created_at < ? AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.status = 'pending')
       ORDER BY created_at LIMIT ?`,
      [before, BATCH],
    )
    if (old.length === 0) return
    for (const ids of inBatches(old)) {
      if (isStopping()) return
      await database.transaction(trx => purgeEvents(trx, ids))
    }
  }
}

/** Ends webhooks that were deleted, once all deliveries to them are past their retention. */
const purgeDeleted: Step = async ({ database, clock, retentionDays }, isStopping) => {
  const before = clock.now() - retentionDays * DAY_MS
  while (!isStopping()) {
    const ended = await database.transaction(trx => purgeWebhooks(trx, before, BATCH))
    if (ended === 0) return
  }
}

/** Ids of events in their order, those together that have no more than a batch of deliveries. */
const inBatches = (events: { id: string; deliveries: number }[]): string[][] => {
  const batches: { ids: string[]; rows: number }[] = []
  for (const { id, deliveries } of events) {
    const size = Number(deliveries)
    const last = batches.at(-1)
    if (last && last.rows + size <= BATCH) {
      last.ids.push(id)
      last.rows += size
    } else batches.push({ ids: [id], rows: size })
  }
  return batches.map(({ ids }) => ids)
}

/**
 * Deletes events with their deliveries: all of an event at once, so that a recovery finds none that was acknowledged
 * and does not look it. One that is to be sent again by now stays, with all that is its own.
 */
const purgeEvents = async (trx: Knex.Transaction, ids: string[]): Promise<void> => {
  // Whoever sends one of them again holds it; what has been written by then is seen here.
  await rows(trx, `SELECT id FROM events WHERE id IN (${marks(ids)}) ORDER BY id${dialectOf(trx).forUpdate}`, ids)
  const found = await rows<{ id: string; event_id: string; status: string }>(
    trx,
    `SELECT id, event_id, status FROM deliveries WHERE event_id IN (${marks(ids)}) ORDER BY id`,
    ids,
  )
  const owed = new Set(found.filter(({ status }) => status === 'pending').map(({ event_id }) => event_id))
  const deliveryIds = found.filter(({ event_id }) => !owed.has(event_id)).map(({ id }) => id)
  for (let from = 0; from < deliveryIds.length; from += STATEMENT_LIMITS.keys) {
    const part = deliveryIds.slice(from, from + STATEMENT_LIMITS.keys)
    // Before its attempts: one that is recorded late waits for this, and finds no delivery.
    await run(trx, `DELETE FROM deliveries WHERE id IN (${marks(part)})`, part)
    await run(trx, `DELETE FROM attempts WHERE delivery_id IN (${marks(part)})`, part)
  }
  const eventIds = ids.filter(id => !owed.has(id))
  if (eventIds.length === 0) return
  await run(trx, `DELETE FROM events WHERE id IN (${marks(eventIds)})`, eventIds)
  await run(trx, `DELETE FROM event_organisations WHERE event_id IN (${marks(eventIds)})`, eventIds)
}
