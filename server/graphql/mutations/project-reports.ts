import { approveProjectReport, submitProjectReport } from '../../domain/project-reports.ts'
import { type Mutations, mutation } from './mutation.ts'

export const projectReportMutations: Mutations = {
  submitProjectReport: mutation<{ projectId: string; quarter: string; submitterId: string }>(
    'reports',
    (args, context) => context.change(change => submitProjectReport(change, args, context.reportDueDays)),
  ),
  approveProjectReport: mutation<{ id: string; approverId: string; approvedDate?: string }>(
    'reports',
    (args, context) => context.change(change => approveProjectReport(change, args)),
  ),
}
