import { rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { recordEvent } from '../domain/events.ts'
import { lockProject } from '../domain/projects.ts'
import { dateOf } from '../domain/quarters.ts'
import type { ProjectReportRow } from '../domain/resources.ts'
import type { Step } from './step.ts'

/** Reports of one transaction, which locks the webhooks of their events. */
const REPORTS = 10

/** Emits `project_report_quarterly_overdue` once for each report that is still open after its due date. */
export const emitOverdue: Step = {
  name: 'emit overdue',
  everyMs: 5_000,
  largestPart: 1 / 2,
  begin({ database, clock, onEvents }) {
    // Continues after the rows of this round.
    let last = { id: '', due_date: '' }
    return async () => {
      const emitted = await database.transaction(async trx => {
        // One range in the order of its index, as in expiry.ts.
        const late = await rows<ProjectReportRow>(
          trx,
          `SELECT * FROM project_reports
           WHERE status = 'open' AND overdue_at IS NULL
             AND due_date >= ? AND due_date < ? AND (due_date > ? OR id > ?)
           ORDER BY due_date, id LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
          [last.due_date, dateOf(clock.now()), last.due_date, last.id, REPORTS],
        )
        for (const report of late) await tell(trx, report, clock.now)
        return late
      })
      if (emitted.length === 0) return false
      last = emitted.at(-1)!
      onEvents()
      return true
    }
  },
}

const tell = async (trx: Transaction, report: ProjectReportRow, now: () => number): Promise<void> => {
  const { id, project_id: projectId, quarter } = report
  // The event goes to the project's organisation at the commit.
  const project = await lockProject(trx, projectId, 'forShare')
  const overdueAt = now()
  const won = await run(
    trx,
    `UPDATE project_reports SET overdue_at = ?, updated_at = ?
     WHERE id = ? AND status = 'open' AND overdue_at IS NULL`,
    [overdueAt, overdueAt, id],
  )
  if (won === 0) return
  const payload = { projectReport: { id, projectId, quarter } }
  const organisationIds = [project!.organisation_id]
  await recordEvent(trx, { type: 'project_report_quarterly_overdue', organisationIds, projectId, payload }, now)
}
