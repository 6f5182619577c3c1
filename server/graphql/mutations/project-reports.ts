import {
  type Approval,
  approveProjectReport,
  besideApproval,
  requireQuarter,
  type Submission,
} from '../../domain/project-reports.ts'
import { submitAlone } from '../../domain/submissions.ts'
import { type Mutations, mutation } from './mutation.ts'

export const projectReportMutations: Mutations = {
  submitProjectReport: mutation<Submission>('reports', async (args, { change, reportDueDays, submissions }) => {
    requireQuarter(args.quarter)
    return change(
      within => submitAlone(within, args, reportDueDays),
      undefined,
      one => submissions({ ...one, submission: args }),
    )
  }),
  approveProjectReport: mutation<Approval>('reports', (args, { change }) =>
    change((within, row) => approveProjectReport(within, args, row), besideApproval(args)),
  ),
}
