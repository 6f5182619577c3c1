import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { examples, pastTime } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { timeColumn } from '../resources/cells.ts'
import { existingId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface AuditEntry {
  id: string
  time: string
  accessTokenId: string | null
  accessToken: { name: string } | null
  actor: string | null
  operation: string
  arguments: unknown
  subjectId: string | null
  requestId: string | null
}

export const auditCommand = () =>
  new Command('audit')
    .description(
      'Who changed what, and when: every mutation, and the commands of operators on the server’s machine. Kept ' +
        'for 90 days or as configured. Needs an access token with the permission admin that sees all organisations.',
    )
    .addCommand(listAuditCommand())
    .addHelpText('after', examples(['What was changed today?', 'tidings audit list --since 1d']))

const listAuditCommand = () =>
  listCommand()
    .summary('list changes')
    .description('Lists changes, latest first.')
    .option('--operation <name>', 'only of this mutation, such as upsertWebhook')
    .option('--token <id>', 'only those made with this access token')
    .option('--subject <id>', 'only those of the object with this id')
    .option('--since <time>', 'only those since: how long ago (90s, 15m, 2h, 7d), a date, or an ISO 8601 time')
    .addHelpText(
      'after',
      examples(
        ['What was changed today?', 'tidings audit list --since 1d'],
        ['Who disabled this webhook?', 'tidings audit list --operation upsertWebhook --subject ID'],
        [
          'Who created the tokens with the permission admin?',
          `tidings audit list --selector '{"arguments.permissions":{"$all":["admin"]}}'`,
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { nowMs } = session.output
      const { operation, subject, since } = options
      const token = await existingId(session, 'accessTokens', options.token)
      await list<AuditEntry>(session, options, {
        resource: 'auditLog',
        noun: ['change', 'changes'],
        fields: 'id time accessTokenId accessToken { name } actor operation arguments subjectId requestId',
        view: view(nowMs),
        conditions: [
          ...(operation ? [{ operation }] : []),
          ...(token ? [{ accessTokenId: token }] : []),
          ...(subject ? [{ $or: [{ subjectId: subject }, { 'arguments.id': subject }] }] : []),
          ...(since ? [{ time: { $gte: pastTime(since, '--since', nowMs) } }] : []),
        ],
        sort: [{ time: 'desc' }],
      })
    })

const view = (nowMs: number): View<AuditEntry> => ({
  columns: [
    timeColumn('TIME', row => row.time, nowMs),
    { title: 'WHO', shrinks: 'end', cell: row => cellText(row.accessToken?.name ?? row.accessTokenId ?? row.actor) },
    { title: 'WHAT', cell: row => cellText(row.operation) },
    { title: 'ARGUMENTS', shrinks: 'end', cell: row => cellText(row.arguments) },
    { title: 'MADE', optional: true, shrinks: 'end', cell: row => cellText(row.subjectId) },
    { title: 'REQUEST', optional: true, shrinks: 'end', cell: row => cellText(row.requestId) },
  ],
  empty:
    'No changes. They are kept for 90 days, for an access token with the permission admin that sees all ' +
    'organisations: tidings whoami',
})
