import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { dryRunOption, examples, futureTime, yesOption } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { relativeIso } from '../output/time.ts'
import { type AccessToken, makeToken, mayPrintSecret, tokenFields } from '../resources/access-token.ts'
import { resolveId } from '../resources/ids.ts'

const END = `mutation ($id: UUID!, $at: DateTime) {
  accessToken: revokeAccessToken(id: $id, at: $at) { ${tokenFields} }
}`

const rotateUsage = () =>
  new Command('rotate')
    .summary('replace an access token in two steps, without a gap')
    .description(
      'Creates an access token with the name, permissions, organisations and lifetime of another one. Both are valid ' +
        'until the old one ends: at the time of --ends, or when --finish revokes it. Its webhooks go on, and the new ' +
        'token sees and changes them. Needs an access token with the permission admin.',
    )
    .argument('<id>', 'the access token’s id, name or API key')
    .option('--ends <time>', 'when the old one ends: how long from now (12h, 7d), a date, or an ISO 8601 time')
    .option('--finish', 'the new one is in use everywhere: revoke the old one')
    .option('--save <profile>', 'save the new one as this profile instead of showing its secret')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['The next one; the old one ends in a week', 'tidings tokens rotate ci --ends 7d --save ci'],
        ['In two steps: first the new one', 'tidings tokens rotate ci'],
        ['then, when it is in use everywhere', 'tidings tokens rotate ci --finish'],
      ),
    )

export const rotateCommand = () =>
  rotateUsage().action(async (given, options, command) => {
    const session = new Session(command)
    if (options.finish) {
      if (options.ends !== undefined || options.save !== undefined) {
        throw usageError('--finish only revokes the old one.', 'Leave out --ends and --save.')
      }
      return finish(session, given)
    }
    const at = options.ends === undefined ? undefined : futureTime(options.ends, '--ends', session.output.nowMs)
    mayPrintSecret(session, options.save)
    const old = await rotated(session, given)
    const made = await makeToken(
      session,
      {
        name: old.name,
        permissions: old.permissions,
        organisationIds: old.seesAllOrganisations ? undefined : old.organisationIds,
        expiresAt: sameLifetime(old, session.output.nowMs),
      },
      options.save,
    )
    if (at === undefined) {
      session.output.message(`Both are valid. End the old one with: tidings tokens rotate ${cellText(old.id)} --finish`)
      return
    }
    await session.graphql(END, { id: old.id, at }).catch(error => {
      if (!(error instanceof CliError)) throw error
      const hint = `End it with: tidings tokens rotate ${cellText(old.id)} --finish`
      throw new CliError(error.exitCode, error.code, `${error.message} The new token ${made.id} is valid.`, hint)
    })
    session.output.message(`The old one, ${cellText(old.apiKey)}, ends ${relativeIso(at, session.output.nowMs)}.`)
  })

/** The token to replace. Throws a CliError if it is no longer valid. */
const rotated = async (session: Session, given: string): Promise<AccessToken> => {
  const id = await resolveId(session, 'accessTokens', given, { prefer: row => row.revokedAt === null })
  const [old] = await tokensWith(session, { id })
  if (old && isValid(old, session.output.nowMs)) return old
  throw new CliError(
    exitCodes.failed,
    'CONFLICT',
    `Access token ${cellText(given)} is no longer valid: it cannot be replaced without a gap.`,
    'Create another one with: tidings tokens create --help',
  )
}

/** Revokes the older ones of a name, or the token with an id, if there is a newer one that is valid. */
const finish = async (session: Session, given: string): Promise<void> => {
  const { output } = session
  const named = await tokensWith(session, { name: given, revokedAt: null })
  const valid = (tokens: AccessToken[]) => tokens.filter(token => isValid(token, output.nowMs))
  let [next, ...old] = valid(named)
  if (named.length === 0) {
    const id = await resolveId(session, 'accessTokens', given)
    const [asked] = await tokensWith(session, { id })
    next = valid(await tokensWith(session, { name: asked?.name, revokedAt: null })).find(token => token.id !== id)
    old = asked ? [asked] : []
  }
  const [first, ...more] = old
  if (!next || !first || next.createdAt <= first.createdAt || more.length > 0) {
    throw new CliError(
      exitCodes.failed,
      'CONFLICT',
      more.length > 0
        ? `There are ${more.length + 2} valid access tokens called ${cellText(given)}.`
        : `There is no newer access token in place of ${cellText(given)}.`,
      more.length > 0
        ? 'Name the one to revoke by its id: tidings tokens list --active'
        : `Create it first: tidings tokens rotate ${cellText(given)}`,
    )
  }
  const unused = next.lastUsedAt === null ? ' The new one has not been used yet.' : ''
  const used = first.lastUsedAt === null ? 'never used' : `last used ${relativeIso(first.lastUsedAt, output.nowMs)}`
  if (!session.dryRun) await confirm(`Revoke the old ${cellText(first.name)}, ${used}?${unused}`, session)
  const { accessToken } = await session.graphql<{ accessToken: AccessToken }>(END, { id: first.id })
  output.one(accessToken, colours =>
    describeFields(
      [
        ['ID', cellText(accessToken.id)],
        ['Name', cellText(accessToken.name)],
        ['Revoked', cellText(accessToken.revokedAt)],
      ],
      colours,
    ),
  )
}

/** Newest first. */
const tokensWith = async (session: Session, selector: object): Promise<AccessToken[]> => {
  const document = `query ($query: MangoQuery) { accessTokens(query: $query) { ${tokenFields} } }`
  const query = { selector, sort: [{ createdAt: 'desc' }], limit: 20 }
  return (await session.ask<{ accessTokens: AccessToken[] }>(document, { query })).accessTokens
}

const isValid = ({ revokedAt, expiresAt }: AccessToken, nowMs: number): boolean =>
  revokedAt === null && (expiresAt === null || Date.parse(expiresAt) > nowMs)

/** As long from now as the old one had from its creation. */
const sameLifetime = ({ createdAt, expiresAt }: AccessToken, nowMs: number): string | undefined =>
  expiresAt === null ? undefined : new Date(nowMs + Date.parse(expiresAt) - Date.parse(createdAt)).toISOString()
