import { Command } from '@commander-js/extra-typings'
import { permissions } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { collect, dryRunOption, examples, futureTime, permissionList, yesOption } from '../options.ts'
import { cellText, describeFields, type View } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { relativeIso } from '../output/time.ts'
import { type AccessToken, makeToken, mayPrintSecret, tokenFields } from '../resources/access-token.ts'
import { idColumn, timeColumn } from '../resources/cells.ts'
import { idToChange, resolveIds } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'
import { rotateCommand } from './tokens-rotate.ts'

export const tokensCommand = () =>
  new Command('tokens')
    .description('Access tokens: an API key and a secret, what they may do, and the organisations they see.')
    .addCommand(listTokensCommand())
    .addCommand(createCommand())
    .addCommand(rotateCommand())
    .addCommand(revokeCommand())
    .addHelpText(
      'after',
      examples(
        ['Which exist, and which are in use?', 'tidings tokens list'],
        ['Replace one without a gap; the old one ends in a week', 'tidings tokens rotate ci --ends 7d --save ci'],
      ),
    )

const listTokensCommand = () =>
  listCommand()
    .summary('list access tokens')
    .description('Lists access tokens, newest first. Without the permission admin, only the one in use.')
    .option('--active', 'only those that are neither revoked nor expired')
    .addHelpText(
      'after',
      examples(
        ['All of them', 'tidings tokens list'],
        [
          'Those that nobody has used this year',
          `tidings tokens list --selector '{"lastUsedAt":{"$lt":"2026-01-01"}}'`,
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { nowMs } = session.output
      const notExpired = { $or: [{ expiresAt: null }, { expiresAt: { $gt: new Date(nowMs).toISOString() } }] }
      await list<AccessToken>(session, options, {
        resource: 'accessTokens',
        noun: ['access token', 'access tokens'],
        fields: tokenFields,
        view: view(nowMs),
        conditions: options.active ? [{ revokedAt: null }, notExpired] : [],
        sort: [{ createdAt: 'desc' }],
      })
    })

const createCommand = () =>
  new Command('create')
    .summary('create an access token; its secret is shown only this once')
    .description(
      'Creates an access token. Its secret is shown only this once, or with --save goes directly into a profile and ' +
        'is not shown at all. Needs an access token with the permission admin.',
    )
    .requiredOption('--name <name>', 'what the token is for')
    .requiredOption('--permissions <list>', `what it may do: ${permissions.join(', ')} (comma-separated)`, collect)
    .option(
      '--organisation <id>',
      'an organisation that it sees, by id or name (repeatable); by default it sees all',
      collect,
    )
    .option('--expires <time>', 'when it expires: how long from now (12h, 90d), a date, or an ISO 8601 time')
    .option('--save <profile>', 'save it as this profile instead of showing its secret')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        [
          'For a script that sets webhooks up',
          'tidings tokens create --name ci --permissions read,webhooks --expires 90d',
        ],
        [
          'With its secret in a file that only you can read',
          'tidings tokens create --name ci --permissions read --output json ' +
            '| jq -r .secret | install -m 600 /dev/stdin secret.txt',
        ],
        ['Replace the token in profile ci', 'tidings tokens create --name ci-2 --permissions read,webhooks --save ci'],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const granted = permissionList(options.permissions)
      mayPrintSecret(session, options.save)
      await makeToken(
        session,
        {
          name: options.name,
          permissions: granted,
          organisationIds: await resolveIds(session, 'organisations', options.organisation),
          expiresAt:
            options.expires === undefined ? undefined : futureTime(options.expires, '--expires', session.output.nowMs),
        },
        options.save,
      )
    })

const revokeCommand = () =>
  new Command('revoke')
    .summary('revoke an access token at once')
    .description(
      'Revokes an access token at once: requests signed with it are refused from then on. Its webhooks go on; ' +
        'disable those that must not. Needs an access token with the permission admin.',
    )
    .argument('<id>', 'the access token’s id, name or API key')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(['After a confirmation', 'tidings tokens revoke ID'], ['In a script', 'tidings tokens revoke ID --yes']),
    )
    .action(async (given, options, command) => {
      const session = new Session(command)
      const revoke = 'mutation ($id: UUID!) { accessToken: revokeAccessToken(id: $id) { id name revokedAt } }'
      if (options.dryRun) {
        return void (await session.graphql(revoke, {
          id: await idToChange(session, 'accessTokens', given, stillValid),
        }))
      }
      const found = await find(session, given)
      if (found.revokedAt !== null) {
        session.output.message(`It was already revoked ${relativeIso(found.revokedAt, session.output.nowMs)}.`)
      } else {
        const own = found.apiKey === session.settings.apiKey?.value ? ' It is the one that this command uses.' : ''
        const used = found.lastUsedAt
          ? `last used ${relativeIso(found.lastUsedAt, session.output.nowMs)}`
          : 'never used'
        await confirm(`Revoke access token ${cellText(found.name)} (${used})?${own}`, session)
      }
      const { accessToken } = await session.graphql<{ accessToken: { id: string; name: string; revokedAt: string } }>(
        revoke,
        { id: found.id },
      )
      session.output.one(accessToken, colours =>
        describeFields(
          [
            ['ID', cellText(accessToken.id)],
            ['Name', cellText(accessToken.name)],
            ['Revoked', cellText(accessToken.revokedAt)],
          ],
          colours,
        ),
      )
    })

/** Of several tokens of one name, the one that is not revoked is meant. */
const stillValid = { prefer: ({ revokedAt }: { revokedAt?: string | null }) => revokedAt === null }

const find = async (session: Session, given: string): Promise<AccessToken> => {
  const selector = { id: await idToChange(session, 'accessTokens', given, stillValid) }
  const { accessTokens } = await session.graphql<{ accessTokens: AccessToken[] }>(
    `query ($query: MangoQuery) { accessTokens(query: $query) { ${tokenFields} } }`,
    { query: { selector } },
  )
  const [found] = accessTokens
  if (found) return found
  throw new CliError(
    exitCodes.notFound,
    'NOT_FOUND',
    `No access token ${cellText(given)} is visible to the one in use.`,
    'List the visible ones with: tidings tokens list',
  )
}

const view = (nowMs: number): View<AccessToken> => ({
  columns: [
    idColumn,
    { title: 'NAME', shrinks: 'end', cell: row => cellText(row.name) },
    {
      title: 'STATUS',
      cell: ({ revokedAt, expiresAt }, colours) =>
        revokedAt
          ? colours.dim('revoked')
          : expiresAt && Date.parse(expiresAt) <= nowMs
            ? colours.dim('expired')
            : colours.green('active'),
    },
    { title: 'PERMISSIONS', shrinks: 'end', optional: true, cell: row => cellText(row.permissions.join(', ')) },
    timeColumn('LAST USED', row => row.lastUsedAt, nowMs),
    { ...timeColumn<AccessToken>('EXPIRES', row => row.expiresAt, nowMs), optional: true },
  ],
  empty: 'No access tokens.',
})
