import { Command, Option } from '@commander-js/extra-typings'
import { type ReportStatus, reportStatuses } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { type Colours, cellText, describeFields } from '../output/output.ts'
import { idColumn, statusCell, timeColumn } from '../resources/cells.ts'
import { resolveId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface ProjectReport {
  id: string
  project: { id: string; name: string }
  quarter: string
  dueDate: string
  status: ReportStatus
  submitter: { id: string; name: string } | null
  submittedAt: string | null
  approver: { id: string; name: string } | null
  approvedDate: string | null
  overdueAt: string | null
}

/** The GraphQL selection of a project report. */
export const reportFields =
  'id project { id name } quarter dueDate status submitter { id name } submittedAt approver ' +
  '{ id name } approvedDate overdueAt'

export const reportsCommand = () =>
  new Command('reports')
    .description('Quarterly project reports. Most events report that one was submitted or approved.')
    .addCommand(listReportsCommand())
    .addCommand(submitCommand())
    .addCommand(approveCommand())
    .addHelpText(
      'after',
      examples(
        ['Which are not submitted yet?', 'tidings reports list --status open'],
        ['Hand one in', 'tidings reports submit --project ID --quarter 2026-3 --submitter ID'],
      ),
    )

const listReportsCommand = () =>
  listCommand()
    .summary('list project reports')
    .description('Lists project reports, latest quarter first.')
    .option('--project <id>', 'only those of this project')
    .option('--quarter <quarter>', 'only those of this quarter, such as 2026-3')
    .addOption(new Option('--status <status>', 'only those in this status').choices(reportStatuses))
    .addHelpText(
      'after',
      examples(
        ['Those that are not submitted yet', 'tidings reports list --status open'],
        ['Overdue ones', `tidings reports list --status open --selector '{"overdueAt":{"$ne":null}}'`],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { quarter, status } = options
      const project = await resolveId(session, 'projects', options.project)
      await list<ProjectReport>(session, options, {
        resource: 'projectReports',
        noun: ['report', 'reports'],
        fields: reportFields,
        view: {
          columns: [
            idColumn,
            { title: 'QUARTER', cell: row => cellText(row.quarter) },
            { title: 'STATUS', cell: describeStatus },
            { title: 'PROJECT', shrinks: 'end', cell: row => cellText(row.project.name) },
            { title: 'DUE', optional: true, cell: row => cellText(row.dueDate) },
            { ...timeColumn<ProjectReport>('SUBMITTED', row => row.submittedAt, session.output.nowMs), optional: true },
            { title: 'APPROVED', optional: true, cell: row => cellText(row.approvedDate) },
          ],
          empty: 'No reports. They are opened when a quarter ends, or by submitting one: tidings reports submit --help',
        },
        conditions: [
          ...(project ? [{ projectId: project }] : []),
          ...(quarter ? [{ quarter }] : []),
          ...(status ? [{ status }] : []),
        ],
        sort: [{ quarter: 'desc' }],
      })
    })

const submitCommand = () =>
  new Command('submit')
    .summary('submit a project’s report of a quarter')
    .description(
      'Submits a project’s report of a quarter, and opens it first if necessary. ' +
        'Emits project_report_quarterly_submitted.',
    )
    .requiredOption('--project <id>', 'the project')
    .requiredOption('--quarter <quarter>', 'year and quarter, such as 2026-3')
    .requiredOption('--submitter <id>', 'the user who submits it')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(['Make an event to watch', 'tidings reports submit --project ID --quarter 2026-3 --submitter ID']),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { report } = await session.graphql<{ report: ProjectReport }>(
        `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
          report: submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) {
            ${reportFields} } }`,
        {
          projectId: await resolveId(session, 'projects', options.project),
          quarter: options.quarter,
          submitterId: await resolveId(session, 'users', options.submitter),
        },
      )
      session.output.message('Submitted. See who receives it with: tidings deliveries list')
      print(session, report)
    })

const approveCommand = () =>
  new Command('approve')
    .summary('approve a submitted report')
    .description('Approves a submitted report. Emits project_report_quarterly_approved.')
    .argument('<id>', 'the report’s id')
    .requiredOption('--approver <id>', 'the user who approves it')
    .option('--date <date>', 'day of the approval (YYYY-MM-DD); by default today')
    .addOption(dryRunOption())
    .addHelpText('after', examples(['As of today', 'tidings reports approve ID --approver ID']))
    .action(async (id, options, command) => {
      const session = new Session(command)
      const { report } = await session.graphql<{ report: ProjectReport }>(
        `mutation ($id: UUID!, $approverId: UUID!, $approvedDate: Date) {
          report: approveProjectReport(id: $id, approverId: $approverId, approvedDate: $approvedDate) {
            ${reportFields} } }`,
        {
          id: await resolveId(session, 'projectReports', id),
          approverId: await resolveId(session, 'users', options.approver),
          ...(options.date && { approvedDate: options.date }),
        },
      )
      session.output.message('Approved. See who receives it with: tidings deliveries list')
      print(session, report)
    })

const describeStatus = ({ status, overdueAt }: ProjectReport, colours: Colours): string =>
  `${statusCell(status, colours)}${status === 'open' && overdueAt ? ` ${colours.red('overdue')}` : ''}`

const print = (session: Session, report: ProjectReport): void =>
  session.output.one(report, colours =>
    describeFields(
      [
        ['ID', cellText(report.id)],
        ['Project', `${cellText(report.project.name)}  ${colours.dim(cellText(report.project.id))}`],
        ['Quarter', cellText(report.quarter)],
        ['Status', describeStatus(report, colours)],
        ['Due', cellText(report.dueDate)],
        [
          'Submitted',
          report.submittedAt ? `${cellText(report.submittedAt)} by ${cellText(report.submitter?.name)}` : '–',
        ],
        [
          'Approved',
          report.approvedDate ? `${cellText(report.approvedDate)} by ${cellText(report.approver?.name)}` : '–',
        ],
      ],
      colours,
    ),
  )
