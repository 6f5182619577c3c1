import { rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { openReports } from '../domain/project-reports.ts'
import { endOfQuarter, quarterBefore, quarterOf, quartersAfter } from '../domain/quarters.ts'
import { insertedFirst } from '../domain/upsert.ts'
import type { Step, Tools } from './step.ts'

/** Projects of one transaction. */
const PROJECTS = 500
/** How far back an installation goes that has opened no report yet. */
const FIRST_QUARTERS = 4
/** The latest time after a quarter's end at which a project created during it becomes visible. */
const SETTLED_MS = 60_000

type QuarterRow = {
  quarter: string
  passed_project_id: string
  pass_began_at: number | null
  completed_at: number | null
}

/**
 * Opens the report of each ended quarter for every project that existed before its end and has none. `report_quarters`
 * records the progress: missed quarters are made up for, and if nothing is left, one row is read. Processes share the
 * projects, each taking the next ones.
 */
export const openOwedReports: Step = {
  name: 'open reports',
  everyMs: 30_000,
  largestPart: 1 / 3,
  begin: tools => async () => {
    const quarter = await quarterToOpen(tools)
    return quarter !== undefined && tools.database.transaction(trx => openSome(trx, quarter, tools))
  },
}

/** The first ended quarter that is not complete. */
const quarterToOpen = async ({ database, clock }: Tools): Promise<string | undefined> => {
  const now = clock.now()
  const ended = quarterBefore(now)
  const [last] = await rows<QuarterRow>(
    database.knex,
    'SELECT quarter, completed_at FROM report_quarters ORDER BY quarter DESC LIMIT 1',
  )
  if (last && last.completed_at === null) return last.quarter
  if (last && last.quarter >= ended) return undefined
  const next = last ? quartersAfter(last.quarter, 1) : await firstQuarter(database.knex, now)
  // No project existed before the end of the last quarter; work begins with the next one.
  if (next > ended && now < endOfQuarter(ended) + SETTLED_MS) return undefined
  const row = next > ended ? [ended, now] : [next, null]
  const insert = run(database.knex, 'INSERT INTO report_quarters (quarter, completed_at) VALUES (?, ?)', row)
  await insertedFirst(insert)
  return next > ended ? undefined : next
}

/** The quarter in which the first project was created, the first that needs reports. */
const firstQuarter = async (sql: Sql, now: number): Promise<string> => {
  const [first] = await rows<{ at: number | null }>(sql, 'SELECT MIN(created_at) AS at FROM projects')
  const ofFirst = quarterOf(Number(first!.at ?? now))
  const earliest = quartersAfter(quarterBefore(now), 1 - FIRST_QUARTERS)
  return ofFirst < earliest ? earliest : ofFirst
}

/** Opens the reports of the next projects. False when the pass has ended and another has to follow. */
const openSome = async (trx: Transaction, quarter: string, { clock, reportDueDays }: Tools): Promise<boolean> => {
  const [state] = await rows<QuarterRow>(
    trx,
    `SELECT * FROM report_quarters WHERE quarter = ?${dialectOf(trx).forUpdate}`,
    [quarter],
  )
  const now = clock.now()
  const end = endOfQuarter(quarter)
  if (!state || state.completed_at !== null) return true
  const beganAt = Number(state.pass_began_at ?? now)
  const projects = await rows<{ id: string; created_at: number; report_id: string | null }>(
    trx,
    `SELECT p.id, p.created_at, r.id AS report_id
     FROM projects p LEFT JOIN project_reports r ON r.project_id = p.id AND r.quarter = ?
     WHERE p.id > ? ORDER BY p.id LIMIT ?`,
    [quarter, state.passed_project_id, PROJECTS],
  )
  if (projects.length === 0) {
    const isLast = beganAt >= end + SETTLED_MS
    await run(
      trx,
      "UPDATE report_quarters SET passed_project_id = '', pass_began_at = NULL, completed_at = ? WHERE quarter = ?",
      [isLast ? now : null, quarter],
    )
    return isLast
  }
  const owed = projects.filter(({ created_at, report_id }) => report_id === null && Number(created_at) < end)
  const projectIds = owed.map(({ id }) => id)
  if (owed.length > 0) await openReports(trx, { projectIds, quarter, dueDays: reportDueDays, now })
  await run(trx, 'UPDATE report_quarters SET passed_project_id = ?, pass_began_at = ? WHERE quarter = ?', [
    projects.at(-1)!.id,
    beganAt,
    quarter,
  ])
  return true
}
