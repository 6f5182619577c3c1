import { Command, Option } from '@commander-js/extra-typings'
import { mutations, operatorCommands } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { examples } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { timeColumn } from '../resources/cells.ts'
import { resolveId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'
import { aboutSubject, resolveSubject } from '../resources/subject.ts'
import { conditionsOf, sinceOption, untilOption, windowOf } from '../window.ts'

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

/** The GraphQL selection of an entry of the audit log. */
export const auditFields = 'id time accessTokenId accessToken { name } actor operation arguments subjectId requestId'

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
    .addOption(
      new Option('--operation <name>', 'only of this mutation, or command of an operator').choices([
        ...mutations,
        ...operatorCommands,
      ]),
    )
    .option('--token <id>', 'only those made with this access token: its id, name or API key')
    .option(
      '--subject <id>',
      'only those of this object: the id or name of a webhook, an access token, an organisation …',
    )
    .addOption(sinceOption('only those'))
    .addOption(untilOption('only those'))
    .addHelpText(
      'after',
      examples(
        ['What was changed today?', 'tidings audit list --since 1d'],
        ['Who disabled this webhook?', 'tidings audit list --operation upsertWebhook --subject Ledger'],
        [
          'Who created the tokens with the permission admin?',
          `tidings audit list --selector '{"arguments.permissions":{"$all":["admin"]}}'`,
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { nowMs } = session.output
      const { operation } = options
      const span = windowOf(session.output, options)
      const token = await resolveId(session, 'accessTokens', options.token)
      const subject = await resolveSubject(session, options.subject)
      await list<AuditEntry>(session, options, {
        resource: 'auditLog',
        noun: ['change', 'changes'],
        fields: auditFields,
        view: view(nowMs),
        conditions: [
          ...(operation ? [{ operation }] : []),
          ...(token ? [{ accessTokenId: token }] : []),
          ...(subject ? [aboutSubject(subject)] : []),
          ...conditionsOf(span, 'time'),
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
