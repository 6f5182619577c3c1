import { badInput, notFound, TidingsError } from '../../shared/errors.ts'
import { parseIso } from '../../shared/time.ts'
import { isDuplicate, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { recordEvent } from './events.ts'
import { holdProject, lockProject } from './projects.ts'
import { dateOf, dueDateOf, isQuarter } from './quarters.ts'
import { type ProjectReportRow, projects, type UserRow } from './resources.ts'
import { findVisible } from './visibility.ts'

/** Opens the report of a project and quarter where there is none; true if it did. */
export const openReport = async (
  sql: Sql,
  { projectId, quarter, dueDays, now }: { projectId: string; quarter: string; dueDays: number; now: number },
): Promise<boolean> => {
  try {
    await run(
      sql,
      `INSERT INTO project_reports (id, project_id, quarter, due_date, status, created_at, updated_at)
       VALUES (?, ?, ?, ?, 'open', ?, ?)`,
      [newId(now), projectId, quarter, dueDateOf(quarter, dueDays), now, now],
    )
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

/** Opens the reports of one quarter for many projects, where there is none. */
export const openReports = async (
  sql: Sql,
  { projectIds, quarter, dueDays, now }: { projectIds: string[]; quarter: string; dueDays: number; now: number },
): Promise<void> => {
  const dueDate = dueDateOf(quarter, dueDays)
  const unlessThere = dialectOf(sql).onDuplicateUpdate(['project_id', 'quarter'], ['quarter'])
  await run(
    sql,
    `INSERT INTO project_reports (id, project_id, quarter, due_date, status, created_at, updated_at)
     VALUES ${projectIds.map(() => "(?, ?, ?, ?, 'open', ?, ?)").join(', ')}${unlessThere}`,
    projectIds.flatMap(projectId => [newId(now), projectId, quarter, dueDate, now, now]),
  )
}

/**
 * Submits the report of a quarter, opening it first where that
 * has not happened yet. Late is accepted, twice is a CONFLICT.
 */
export const submitProjectReport = async (
  change: Change,
  { projectId, quarter, submitterId }: { projectId: string; quarter: string; submitterId: string },
  dueDays: number,
): Promise<ProjectReportRow> => {
  const { trx, now, courier } = change
  if (!isQuarter(quarter))
    throw badInput('quarter', `"${quarter}" is not a quarter; write year and quarter, such as 2026-3`)
  const project = await holdProject(change, projectId)
  const submitter = await holdUser(trx, submitterId)
  const where = 'project_id = ? AND quarter = ?'
  let report = await lockReport(trx, where, [projectId, quarter])
  if (!report) {
    await openReport(trx, { projectId, quarter, dueDays, now: now() })
    report = (await lockReport(trx, where, [projectId, quarter]))!
  }
  if (report.status !== 'open') {
    throw new TidingsError('CONFLICT', `The report of ${quarter} of this project is ${report.status} already.`, {
      projectReportId: report.id,
      status: report.status,
    })
  }
  const submittedAt = now()
  await run(
    trx,
    `UPDATE project_reports SET status = 'submitted', submitter_id = ?, submitted_at = ?, updated_at = ?
     WHERE id = ? AND status = 'open'`,
    [submitterId, submittedAt, submittedAt, report.id],
  )
  await recordEvent(
    trx,
    {
      type: 'project_report_quarterly_submitted',
      organisationIds: [project.organisation_id],
      projectId,
      payload: {
        projectReport: { id: report.id, projectId, quarter, submitterId, submitterName: submitter.name },
      },
    },
    now,
    courier,
  )
  return { ...report, status: 'submitted', submitter_id: submitterId, submitted_at: submittedAt }
}

/** Approves a submitted report; anything else is a CONFLICT. Without a date it is approved today (UTC). */
export const approveProjectReport = async (
  change: Change,
  { id, approverId, approvedDate: given }: { id: string; approverId: string; approvedDate?: string },
): Promise<ProjectReportRow> => {
  const { trx, token, now, courier } = change
  if (given !== undefined && (!/^\d{4}-\d{2}-\d{2}$/.test(given) || parseIso(given) === undefined)) {
    throw badInput('approvedDate', `"${given}" is not a date; write YYYY-MM-DD, such as ${dateOf(now())}`)
  }
  // Of whichever project a report is, it stays: the project is held first, as where one is submitted.
  const [found] = await rows<ProjectReportRow>(trx, 'SELECT project_id FROM project_reports WHERE id = ?', [id])
  const project = found && (await lockProject(trx, found.project_id, 'forShare'))
  const isSeen = project && (token.seesAllOrganisations || (await findVisible(trx, token, projects, project.id)))
  if (!isSeen) throw notFound('project report', [id])
  const approver = await holdUser(trx, approverId)
  const report = (await lockReport(trx, 'id = ?', [id]))!
  if (report.status !== 'submitted') {
    throw new TidingsError(
      'CONFLICT',
      report.status === 'open'
        ? 'The report has not been submitted yet: submit it, then approve it.'
        : `The report was approved on ${report.approved_date}.`,
      { projectReportId: id, status: report.status },
    )
  }
  const approvedAt = now()
  const approvedDate = given ?? dateOf(approvedAt)
  await run(
    trx,
    `UPDATE project_reports SET status = 'approved', approver_id = ?, approved_date = ?, updated_at = ?
     WHERE id = ? AND status = 'submitted'`,
    [approverId, approvedDate, approvedAt, id],
  )
  await recordEvent(
    trx,
    {
      type: 'project_report_quarterly_approved',
      organisationIds: [project.organisation_id],
      projectId: report.project_id,
      payload: {
        projectReport: {
          id,
          projectId: report.project_id,
          quarter: report.quarter,
          approverId,
          approverName: approver.name,
          approvedDate,
        },
      },
    },
    now,
    courier,
  )
  return { ...report, status: 'approved', approver_id: approverId, approved_date: approvedDate }
}

/** A user, held so that the name which an event tells is still its name when the event is committed. */
const holdUser = async (trx: Sql, id: string): Promise<UserRow> => {
  const [user] = await rows<UserRow>(trx, `SELECT * FROM users WHERE id = ?${dialectOf(trx).forShare}`, [id])
  if (!user) throw notFound('user', [id])
  return user
}

const lockReport = async (trx: Sql, where: string, bindings: string[]): Promise<ProjectReportRow | undefined> => {
  const [report] = await rows<ProjectReportRow>(
    trx,
    `SELECT * FROM project_reports WHERE ${where}${dialectOf(trx).forUpdate}`,
    bindings,
  )
  return report
}
