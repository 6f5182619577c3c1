import { Command } from '@commander-js/extra-typings'
import { type Permission, permissions } from '../../shared/vocabulary.ts'
import { profilesPath, readProfiles, saveProfile, tryToSave } from '../connection/profiles.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, dryRunOption, examples, futureTime, permissionList, yesOption } from '../options.ts'
import { type Colours, cellText, describeFields, secretLost, type View } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { relativeIso } from '../output/time.ts'
import { idColumn, timeColumn } from '../resources/cells.ts'
import { resolveId, resolveIds } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface AccessToken {
  id: string
  name: string
  apiKey: string
  permissions: Permission[]
  seesAllOrganisations: boolean
  organisationIds: string[]
  expiresAt: string | null
  revokedAt: string | null
  lastUsedAt: string | null
  createdAt: string
}

const FIELDS =
  'id name apiKey permissions seesAllOrganisations organisationIds expiresAt revokedAt lastUsedAt createdAt'

export const tokensCommand = () =>
  new Command('tokens')
    .description('Access tokens: an API key and a secret, what they may do, and the organisations they see.')
    .addCommand(listTokensCommand())
    .addCommand(createCommand())
    .addCommand(revokeCommand())
    .addHelpText(
      'after',
      examples(
        ['Which exist, and which are in use?', 'tidings tokens list'],
        [
          'Rotate: create the next one, use it, then revoke the old one',
          'tidings tokens create --name ci-2027 --permissions read,webhooks --save ci',
        ],
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
        fields: FIELDS,
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
    .option('--organisation <id>', 'an organisation that it sees (repeatable); by default it sees all', collect)
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
      const { output } = session
      const granted = permissionList(options.permissions)
      if (output.form === 'id' && options.save === undefined) {
        throw usageError('--output id would lose the secret.', 'Take --output json, or --save PROFILE.')
      }
      // Checked before the token is created, because a secret that cannot be saved is lost.
      if (options.save === undefined && !session.dryRun) output.mustNotBeLost()
      const replaced = options.save === undefined ? undefined : readProfiles().profiles[options.save]
      if (options.save !== undefined && !/^[A-Za-z0-9][\w.-]*$/.test(options.save)) {
        throw usageError(
          `${JSON.stringify(options.save)} is not a valid profile name.`,
          'Use letters, digits, “.”, “_” and “-”.',
        )
      }
      if (options.save !== undefined && !session.dryRun) tryToSave()
      const organisationIds = await resolveIds(session, 'organisations', options.organisation)
      const { created } = await session.graphql<{
        created: { accessToken: AccessToken; apiKey: string; secret: string }
      }>(
        `mutation ($name: String!, $permissions: [Permission!]!, $organisationIds: [UUID!], $expiresAt: DateTime) {
          created: createAccessToken(
            name: $name, permissions: $permissions, organisationIds: $organisationIds, expiresAt: $expiresAt
          ) {
            accessToken { ${FIELDS} } apiKey secret
          }
        }`,
        {
          name: options.name,
          permissions: granted,
          ...(organisationIds && { organisationIds }),
          ...(options.expires !== undefined && { expiresAt: futureTime(options.expires, '--expires', output.nowMs) }),
        },
      )
      const { accessToken, apiKey, secret } = created
      const revoke = `tidings tokens revoke ${cellText(accessToken.id)}`
      const describe = (shownSecret: [string, string][], colours: Colours): string =>
        describeFields(
          [
            ['ID', cellText(accessToken.id)],
            ['Name', cellText(accessToken.name)],
            ['API key', cellText(apiKey)],
            ...shownSecret,
            ['Permissions', cellText(accessToken.permissions.join(', '))],
            ['Sees', sees(accessToken)],
            ['Expires', accessToken.expiresAt ? cellText(accessToken.expiresAt) : 'never'],
          ],
          colours,
        )
      if (options.save === undefined) {
        output.secret({ ...accessToken, secret }, revoke, colours => describe([['Secret', cellText(secret)]], colours))
      } else {
        try {
          saveProfile(options.save, { url: session.url.href.replace(/\/$/, ''), apiKey, apiSecret: secret })
        } catch (error) {
          throw secretLost(accessToken.id, (error as Error).message, revoke)
        }
        output.one(accessToken, colours => describe([], colours))
      }
      const mayRead = accessToken.permissions.some(each => each === 'read' || each === 'admin')
      if (!mayRead) output.warning('Without the permission read it can list and show nothing, not even itself.')
      if (options.save === undefined) {
        output.message('The secret is not shown again. Save it where it is used with: tidings login')
        return
      }
      output.message(
        `Saved as profile ${options.save} in ` +
          `${profilesPath()}.${mayRead ? ` Try it with: tidings whoami --profile ${options.save}` : ''}`,
      )
      if (replaced && replaced.apiKey !== apiKey) {
        output.message(
          `The one it held before, ${cellText(replaced.apiKey)}, is still valid. Revoke it with: ` +
            `tidings tokens revoke ${cellText(replaced.apiKey)}`,
        )
      }
    })

const revokeCommand = () =>
  new Command('revoke')
    .summary('revoke an access token at once')
    .description(
      'Revokes an access token at once: requests signed with it are refused from then on. Its webhooks go on; ' +
        'disable those that must not. Needs an access token with the permission admin.',
    )
    .argument('<id>', 'the access token’s id, or its API key')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(['After a confirmation', 'tidings tokens revoke ID'], ['In a script', 'tidings tokens revoke ID --yes']),
    )
    .action(async (given, options, command) => {
      const session = new Session(command)
      const revoke = 'mutation ($id: UUID!) { accessToken: revokeAccessToken(id: $id) { id name revokedAt } }'
      if (options.dryRun) return void (await session.graphql(revoke, { id: given }))
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

const find = async (session: Session, given: string): Promise<AccessToken> => {
  const selector = given.startsWith('tk_') ? { apiKey: given } : { id: await resolveId(session, 'accessTokens', given) }
  const { accessTokens } = await session.graphql<{ accessTokens: AccessToken[] }>(
    `query ($query: MangoQuery) { accessTokens(query: $query) { ${FIELDS} } }`,
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

const sees = ({ seesAllOrganisations, organisationIds }: AccessToken): string =>
  seesAllOrganisations ? 'all organisations' : cellText(organisationIds.join(', '))

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
