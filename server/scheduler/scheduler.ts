import type { Clock } from '../clock.ts'
import { type Database, rows, run } from '../database/connect.ts'
import { recordEvent } from '../domain/events.ts'
import { openReport, type ProjectReportRow } from '../domain/project-reports.ts'
import { dateOf, quarterBefore } from '../domain/quarters.ts'
import type { Log } from '../log.ts'

const EVERY_MS = 30_000
/** Rows of one transaction or statement: small, so that deliveries are not disturbed. */
const BATCH = 200
const DAY_MS = 24 * 3600 * 1000

type Tools = {
  database: Database
  clock: Clock
  log: Log
  reportDueDays: number
  retentionDays: number
  /** Told when events have been written. */
  onEvents: () => void
}

/**
 * What happens because time passes. Each step can be run by any number of processes at once, and again: a row is changed, and
 * its event written, in one transaction that only one of them wins.
 */
export const startScheduler = (tools: Tools): { stop(): Promise<void> } => {
  let stopping = false
  let timer: NodeJS.Timeout | undefined
  const round = async (): Promise<void> => {
    try {
      await runSchedule(tools, () => stopping)
    } catch (error) {
      tools.log.error({ err: error }, 'the schedule could not be kept; trying again')
    }
    if (!stopping) timer = setTimeout(() => (current = round()), EVERY_MS)
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

/** All steps once. */
export const runSchedule = async (tools: Tools, isStopping: () => boolean = () => false): Promise<void> => {
  for (const step of [openReports, findOverdue, findExpired, forget, purge]) {
    while (!isStopping() && (await step(tools)) === 'more') tools.onEvents()
    tools.onEvents()
  }
}

type Step = (tools: Tools) => Promise<'more' | 'done'>

/** Opens the report of the quarter just ended for every project that has none. */
const openReports: Step = async ({ database, clock, reportDueDays }) => {
  const now = clock.now()
  const quarter = quarterBefore(now)
  const projects = await rows<{ id: string }>(
    database.knex,
    `SELECT p.id FROM projects p LEFT JOIN project_reports r ON r.project_id = p.id AND r.quarter = ?
     WHERE r.id IS NULL LIMIT ?`,
    [quarter, BATCH],
  )
  for (const { id } of projects) {
    await openReport(database.knex, { projectId: id, quarter, dueDays: reportDueDays, now })
  }
  return projects.length === BATCH ? 'more' : 'done'
}

/** Emits `project_report_quarterly_overdue`, once, for each report that is open after its due date. */
const findOverdue: Step = async ({ database, clock }) => {
  const now = clock.now()
  const late = await rows<ProjectReportRow & { organisation_id: string }>(
    database.knex,
    `SELECT r.*, p.organisation_id FROM project_reports r JOIN projects p ON p.id = r.project_id
     WHERE r.status = 'open' AND r.due_date < ? AND r.overdue_at IS NULL LIMIT ?`,
    [dateOf(now), BATCH],
  )
  for (const report of late) {
    await database.transaction(async trx => {
      const won = await run(
        trx,
        "UPDATE project_reports SET overdue_at = ?, updated_at = ? WHERE id = ? AND status = 'open' AND overdue_at IS NULL",
        [now, now, report.id],
      )
      if (won === 0) return
      const { id, project_id: projectId, quarter } = report
      await recordEvent(
        trx,
        database.dialect,
        {
          type: 'project_report_quarterly_overdue',
          organisationIds: [report.organisation_id],
          projectId,
          payload: { projectReport: { id, projectId, quarter } },
        },
        now,
      )
    })
  }
  return late.length === BATCH ? 'more' : 'done'
}

/** Emits `token_expired`, once, for each access token whose time has come. A revoked token emits none. */
const findExpired: Step = async ({ database, clock }) => {
  const now = clock.now()
  const expired = await rows<{ id: string; sees_all_organisations: number }>(
    database.knex,
    `SELECT id, sees_all_organisations FROM access_tokens
     WHERE expires_at <= ? AND expiry_event_at IS NULL AND (revoked_at IS NULL OR revoked_at > expires_at) LIMIT ?`,
    [now, BATCH],
  )
  for (const { id, sees_all_organisations } of expired) {
    await database.transaction(async trx => {
      const won = await run(
        trx,
        'UPDATE access_tokens SET expiry_event_at = ? WHERE id = ? AND expiry_event_at IS NULL',
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
        database.dialect,
        {
          type: 'token_expired',
          organisationIds: sees_all_organisations === 1 ? 'all' : seen.map(row => row.organisation_id),
          payload: { accessTokenId: id },
        },
        now,
      )
    })
  }
  return expired.length === BATCH ? 'more' : 'done'
}

/** Forgets signatures that the clock window keeps out by now. */
const forget: Step = async ({ database, clock }) => {
  const old = await rows<{ signature_hash: string }>(
    database.knex,
    'SELECT signature_hash FROM used_signatures WHERE expires_at < ? LIMIT ?',
    [clock.now(), BATCH],
  )
  await database
    .knex('used_signatures')
    .whereIn(
      'signature_hash',
      old.map(row => row.signature_hash),
    )
    .delete()
  return old.length === BATCH ? 'more' : 'done'
}

/** Deletes events past their retention with their deliveries, except where one is still owed. */
const purge: Step = async ({ database, clock, retentionDays }) => {
  const old = await rows<{ id: string }>(
    database.knex,
    `SELECT id FROM events e WHERE created_at < ?
       AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.status = 'pending')
     ORDER BY created_at LIMIT ?`,
    [clock.now() - retentionDays * DAY_MS, BATCH],
  )
  if (old.length === 0) return 'done'
  const ids = old.map(row => row.id)
  await database.transaction(async trx => {
    const deliveries = await trx('deliveries').whereIn('event_id', ids).pluck('id')
    await trx('attempts').whereIn('delivery_id', deliveries).delete()
    await trx('deliveries').whereIn('id', deliveries).delete()
    await trx('event_organisations').whereIn('event_id', ids).delete()
    await trx('events').whereIn('id', ids).delete()
  })
  return old.length === BATCH ? 'more' : 'done'
}
