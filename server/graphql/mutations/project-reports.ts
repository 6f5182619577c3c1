import {
  type Approval,
  approveProjectReport,
  besideApproval,
  besideSubmission,
  type Submission,
  submitProjectReport,
} from '../../domain/project-reports.ts'
import { type Mutations, mutation } from './mutation.ts'

export const projectReportMutations: Mutations = {
  submitProjectReport: mutation<Submission>('reports', (args, { change, reportDueDays, submissions }) =>
    change(
      (within, row) => submitProjectReport(within, args, row, reportDueDays),
      besideSubmission(args),
      one => submissions({ ...one, submission: args }),
    ),
  ),
  approveProjectReport: mutation<Approval>('reports', (args, { change }) =>
    change((within, row) => approveProjectReport(within, args, row), besideApproval(args)),
  ),
}
