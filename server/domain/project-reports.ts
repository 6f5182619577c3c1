import { badInput, notFound, TidingsError } from '../../shared/errors.ts'
import { parseIso } from '../../shared/time.ts'
import { marks, Overtaken, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Beside, Change } from './change.ts'
import { recordEvent } from './events.ts'
import type { AccessToken } from './permissions.ts'
import { dateOf, dueDateOf, isQuarter } from './quarters.ts'
import type { ProjectReportRow } from './resources.ts'
import { insertedFirst } from './upsert.ts'

/** Opens the missing reports of one quarter for many projects. */
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

export type Submission = { projectId: string; quarter: string; submitterId: string }

/** Throws BAD_USER_INPUT. */
export const requireQuarter = (quarter: string): void => {
  if (isQuarter(quarter)) return
  const right = 'write year and quarter, such as 2026-3'
  throw badInput('quarter', `"${quarter}" is not a quarter from 1900-1 to 9998-4; ${right}`)
}

/** What a change of a report is decided on; undefined where there is none. */
export type Facts = {
  /** The caller's token as the transaction has locked it. */
  token: AccessToken
  /** Whether the token was created with the organisation of the project. */
  isGranted: boolean
  organisationId: string | undefined
  userName: string | undefined
  report: ProjectReportRow | undefined
}

/** The organisation and the person of a change of a report. Throws NOT_FOUND. */
const requireParties = (
  { token, isGranted, organisationId, userName }: Facts,
  { subject, userId }: { subject: [resource: string, id: string]; userId: string },
): { organisationId: string; userName: string } => {
  const isSeen = token.seesAllOrganisations || isGranted
  if (organisationId === undefined || !isSeen) throw notFound(subject[0], [subject[1]])
  if (userName === undefined) throw notFound('user', [userId])
  return { organisationId, userName }
}

/**
 * Decides a submission: its organisation, its person, and the open report that it submits, if there is one by now. A
 * late submission is accepted, a second one is a CONFLICT. Throws NOT_FOUND too.
 */
export const decideSubmission = ({ projectId, submitterId }: Submission, facts: Facts) => {
  const { report } = facts
  const parties = requireParties(facts, { subject: ['project', projectId], userId: submitterId })
  return { ...parties, open: report && requireOpen(report) }
}

/** The event of a report that has just been submitted. */
export const submittedEvent = (
  { id, project_id: projectId, quarter, submitter_id: submitterId }: ProjectReportRow,
  organisationId: string,
  submitterName: string,
) => ({
  type: 'project_report_quarterly_submitted' as const,
  organisationIds: [organisationId] as [string],
  projectId,
  payload: { projectReport: { id, projectId, quarter, submitterId: submitterId!, submitterName } },
})

const requireOpen = (report: ProjectReportRow): ProjectReportRow => {
  if (report.status === 'open') return report
  throw new TidingsError('CONFLICT', `The report of ${report.quarter} of this project is already ${report.status}.`, {
    projectReportId: report.id,
    status: report.status,
  })
}

/** A submitted report: a new one, or `open` as it is now. */
export const submitted = (
  { projectId, quarter, submitterId }: Submission,
  open: ProjectReportRow | undefined,
  time: number,
  dueDays: number,
): ProjectReportRow => ({
  ...(open ?? {
    id: newId(time),
    project_id: projectId,
    quarter,
    due_date: dueDateOf(quarter, dueDays),
    approver_id: null,
    approved_date: null,
    overdue_at: null,
  }),
  status: 'submitted',
  submitter_id: submitterId,
  submitted_at: time,
})

/** Inserts submitted reports. Throws Overtaken if one exists by now. */
export const insertReports = async (trx: Sql, reports: ProjectReportRow[]): Promise<void> => {
  if (reports.length === 0) return
  const inserted = run(
    trx,
    `INSERT INTO project_reports (id, project_id, quarter, due_date, status, submitter_id, submitted_at,
       created_at, updated_at) VALUES ${reports.map(() => "(?, ?, ?, ?, 'submitted', ?, ?, ?, ?)").join(', ')}`,
    reports.flatMap(row => [
      ...[row.id, row.project_id, row.quarter, row.due_date, row.submitter_id],
      ...[row.submitted_at, row.submitted_at, row.submitted_at],
    ]),
  )
  if (!(await insertedFirst(inserted))) throw new Overtaken()
}

/** Submits reports that this transaction has locked. Throws Overtaken if one is no longer open. */
export const submitReports = async (trx: Sql, reports: ProjectReportRow[]): Promise<void> => {
  if (reports.length === 0) return
  const time = reports[0]!.submitted_at
  const ids = reports.map(({ id }) => id)
  const submitted = await run(
    trx,
    `UPDATE project_reports SET status = 'submitted', submitted_at = ?, updated_at = ?,
       submitter_id = CASE id ${ids.map(() => 'WHEN ? THEN ?').join(' ')} END
     WHERE id IN (${marks(ids)}) AND status = 'open'`,
    [time, time, ...reports.flatMap(({ id, submitter_id }) => [id, submitter_id]), ...ids],
  )
  if (submitted < ids.length) throw new Overtaken()
}

/** The reports of projects and quarters, not locked. */
export const findReports = (sql: Sql, wanted: Submission[]): Promise<ProjectReportRow[]> =>
  rows(
    sql,
    `SELECT * FROM project_reports ${dialectOf(sql).useIndex('project_reports_by_project_and_quarter')}
     WHERE ${wanted.map(() => '(project_id = ? AND quarter = ?)').join(' OR ')}`,
    wanted.flatMap(({ projectId, quarter }) => [projectId, quarter]),
  )

/** Locks reports and returns them as they are now: with a wait for other transactions, or without those they lock. */
export const lockReports = async (trx: Sql, ids: string[], waits: boolean): Promise<ProjectReportRow[]> => {
  if (ids.length === 0) return []
  const { forUpdate, forUpdateSkipLocked } = dialectOf(trx)
  const locking = waits ? forUpdate : forUpdateSkipLocked
  return rows(trx, `SELECT * FROM project_reports WHERE id IN (${marks(ids)}) ORDER BY id${locking}`, ids)
}

export type Approval = { id: string; approverId: string; approvedDate?: string }

/** A report, read but not locked; its project and a user, both locked. Each is null if there is none. */
type BesideReport = { [Column in ReportColumn as `report_${Column}`]: ProjectReportRow[Column] | null } & {
  project_organisation_id: string | null
  sees_project: string | null
  user_name: string | null
}

const REPORT_COLUMNS = [
  'id',
  'project_id',
  'quarter',
  'due_date',
  'status',
  'submitter_id',
  'submitted_at',
  'approver_id',
  'approved_date',
  'overdue_at',
] as const satisfies (keyof ProjectReportRow)[]
type ReportColumn = (typeof REPORT_COLUMNS)[number]

/** The rows that an approval is decided on. A report never changes its project. */
export const besideApproval = ({ id, approverId, approvedDate }: Approval): Beside<BesideReport> => {
  if (
    approvedDate !== undefined &&
    !(/^\d{4}-\d{2}-\d{2}$/.test(approvedDate) && parseIso(approvedDate) !== undefined)
  ) {
    throw badInput('approvedDate', `"${approvedDate}" is not a date; write YYYY-MM-DD, such as 2026-10-31`)
  }
  return {
    columns: `, p.organisation_id AS project_organisation_id, s.organisation_id AS sees_project, u.name AS user_name,
      ${REPORT_COLUMNS.map(column => `r.${column} AS report_${column}`).join(', ')}`,
    joins: `LEFT JOIN (SELECT * FROM project_reports WHERE id = ?) r ON 1 = 1
      LEFT JOIN projects p ON p.id = r.project_id
      LEFT JOIN access_token_organisations s ON s.access_token_id = t.id AND s.organisation_id = p.organisation_id
      LEFT JOIN users u ON u.id = ?`,
    bindings: [id, approverId],
  }
}

/** The report that was read, if there was one. */
const reportOf = (row: BesideReport): ProjectReportRow | undefined =>
  row.report_id === null
    ? undefined
    : (Object.fromEntries(REPORT_COLUMNS.map(column => [column, row[`report_${column}`]])) as ProjectReportRow)

const factsOf = ({ token }: Change, row: BesideReport): Facts => ({
  token,
  isGranted: row.sees_project !== null,
  organisationId: row.project_organisation_id ?? undefined,
  userName: row.user_name ?? undefined,
  report: reportOf(row),
})

/** Approves a submitted report, by default as of today (UTC). Any other report is a CONFLICT. Throws NOT_FOUND too. */
export const approveProjectReport = async (
  change: Change,
  { id, approverId, approvedDate }: Approval,
  row: BesideReport,
): Promise<ProjectReportRow> => {
  const { trx, now, afterCommit } = change
  const facts = factsOf(change, row)
  const { organisationId, userName } = requireParties(facts, { subject: ['project report', id], userId: approverId })
  const given = { approverId, approvedDate, now }
  const approved =
    (await approveSubmitted(trx, facts.report!, given)) ??
    (await approveSubmitted(trx, requireSubmitted((await lockReports(trx, [id], true))[0]!), given))!
  const { project_id: projectId, quarter } = approved
  await recordEvent(
    trx,
    {
      type: 'project_report_quarterly_approved',
      organisationIds: [organisationId],
      projectId,
      payload: {
        projectReport: {
          id,
          projectId,
          quarter,
          approverId,
          approverName: userName,
          approvedDate: approved.approved_date!,
        },
      },
    },
    now,
    afterCommit,
  )
  return approved
}

const requireSubmitted = (report: ProjectReportRow): ProjectReportRow => {
  if (report.status === 'submitted') return report
  throw new TidingsError(
    'CONFLICT',
    report.status === 'open'
      ? 'The report has not been submitted yet: submit it, then approve it.'
      : `The report was approved on ${report.approved_date}.`,
    { projectReportId: report.id, status: report.status },
  )
}

/**
 * Approves a report that is submitted and unchanged since it was read; otherwise does nothing and returns undefined.
 */
const approveSubmitted = async (
  trx: Sql,
  report: ProjectReportRow,
  { approverId, approvedDate: given, now }: { approverId: string; approvedDate: string | undefined; now: () => number },
): Promise<ProjectReportRow | undefined> => {
  if (report.status !== 'submitted') return undefined
  const approvedAt = now()
  const approvedDate = given ?? dateOf(approvedAt)
  const won = await run(
    trx,
    `UPDATE project_reports SET status = 'approved', approver_id = ?, approved_date = ?, updated_at = ?
     WHERE id = ? AND status = 'submitted'`,
    [approverId, approvedDate, approvedAt, report.id],
  )
  if (won === 0) return undefined
  return { ...report, status: 'approved', approver_id: approverId, approved_date: approvedDate }
}
