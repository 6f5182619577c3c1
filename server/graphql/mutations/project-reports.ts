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
      (held, row) => submitProjectReport(held, args, row, reportDueDays),
      besideSubmission(args),
      one => submissions({ ...one, submission: args }),
    ),
  ),
  approveProjectReport: mutation<Approval>('reports', (args, { change }) =>
    change((held, row) => approveProjectReport(held, args, row), besideApproval(args)),
  ),
}
