import { approveProjectReport, submitProjectReport } from '../../domain/project-reports.ts'
import { projectReports } from '../../domain/resources.ts'
import { column, needs, type Resolvers, related, time } from './resolvers.ts'

export const projectReportResolvers: Resolvers = {
  Query: {
    projectReports: needs('read', (_root, { query }, context) => context.list(projectReports, query)),
  },
  Mutation: {
    submitProjectReport: needs('reports', (_root, args, context) =>
      context.change(change => submitProjectReport(change, args, context.reportDueDays)),
    ),
    approveProjectReport: needs('reports', (_root, { approvedDate, ...args }, context) =>
      context.change(change => approveProjectReport(change, { ...args, ...(approvedDate && { approvedDate }) })),
    ),
  },
  ProjectReport: {
    projectId: column('project_id'),
    project: related('project_id', context => context.loaders.project),
    dueDate: column('due_date'),
    submitterId: column('submitter_id'),
    submitter: related('submitter_id', context => context.loaders.user),
    submittedAt: time('submitted_at'),
    approverId: column('approver_id'),
    approver: related('approver_id', context => context.loaders.user),
    approvedDate: column('approved_date'),
    overdueAt: time('overdue_at'),
  },
}
