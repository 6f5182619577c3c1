import type { Permission } from '../../shared/vocabulary.ts'
import { profilesPath, readProfiles, saveProfile, tryToSave } from '../connection/profiles.ts'
import type { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { type Colours, cellText, describeFields, lostToken, secretLost } from '../output/output.ts'

export interface AccessToken {
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

/** GraphQL selection of an access token. */
export const tokenFields =
  'id name apiKey permissions seesAllOrganisations organisationIds expiresAt revokedAt lastUsedAt createdAt'

/** What a new access token is to be. */
export interface WantedToken {
  name: string
  permissions: Permission[]
  organisationIds: string[] | undefined
  expiresAt: string | undefined
}

const CREATE = `mutation (
  $name: String!, $permissions: [Permission!]!, $organisationIds: [UUID!], $expiresAt: DateTime
) {
  created: createAccessToken(
    name: $name, permissions: $permissions, organisationIds: $organisationIds, expiresAt: $expiresAt
  ) {
    accessToken { ${tokenFields} } apiKey secret
  }
}`

/**
 * Throws a CliError if the secret of a new token could not be shown or saved: it is asked before the token is created,
 * because a secret that cannot be kept is lost.
 */
export const mayPrintSecret = (session: Session, save: string | undefined): void => {
  const { output } = session
  if (output.form === 'id' && save === undefined) {
    throw usageError('--output id would lose the secret.', 'Take --output json, or --save PROFILE.')
  }
  if (save === undefined && !session.dryRun) output.mustNotBeLost()
  if (save !== undefined && !/^[A-Za-z0-9][\w.-]*$/.test(save)) {
    throw usageError(`${JSON.stringify(save)} is not a valid profile name.`, 'Use letters, digits, “.”, “_” and “-”.')
  }
  if (save !== undefined && !session.dryRun) tryToSave()
}

/** Creates an access token, and prints it with its secret, or saves it as a profile. */
export const makeToken = async (
  session: Session,
  { organisationIds, expiresAt, ...wanted }: WantedToken,
  save: string | undefined,
): Promise<AccessToken> => {
  const { output } = session
  const replaced = save === undefined ? undefined : readProfiles().profiles[save]
  const { created } = await session.graphql<{
    created: { accessToken: AccessToken; apiKey: string; secret: string }
  }>(CREATE, { ...wanted, ...(organisationIds && { organisationIds }), ...(expiresAt !== undefined && { expiresAt }) })
  const { accessToken, apiKey, secret } = created
  const lost = lostToken(cellText(accessToken.id))
  if (save === undefined) {
    output.secret({ ...accessToken, secret }, lost, colours =>
      describe(accessToken, apiKey, [['Secret', cellText(secret)]], colours),
    )
  } else {
    try {
      saveProfile(save, { url: session.url.href.replace(/\/$/, ''), apiKey, apiSecret: secret })
    } catch (error) {
      throw secretLost(lost, (error as Error).message)
    }
    output.one(accessToken, colours => describe(accessToken, apiKey, [], colours))
  }
  const mayRead = accessToken.permissions.some(each => each === 'read' || each === 'admin')
  if (!mayRead) output.warning('Without the permission read it can list and show nothing, not even itself.')
  if (save === undefined) {
    output.message('The secret is not shown again. Save it where it is used with: tidings login')
    return accessToken
  }
  output.message(
    `Saved as profile ${save} in ` +
      `${profilesPath()}.${mayRead ? ` Try it with: tidings whoami --profile ${save}` : ''}`,
  )
  if (replaced && replaced.apiKey !== apiKey) {
    output.message(
      `The one it had before, ${cellText(replaced.apiKey)}, is still valid. Revoke it with: ` +
        `tidings tokens revoke ${cellText(replaced.apiKey)}`,
    )
  }
  return accessToken
}

const describe = (token: AccessToken, apiKey: string, secret: [string, string][], colours: Colours): string =>
  describeFields(
    [
      ['ID', cellText(token.id)],
      ['Name', cellText(token.name)],
      ['API key', cellText(apiKey)],
      ...secret,
      ['Permissions', cellText(token.permissions.join(', '))],
      ['Sees', sees(token)],
      ['Expires', token.expiresAt ? cellText(token.expiresAt) : 'never'],
    ],
    colours,
  )

const sees = ({ seesAllOrganisations, organisationIds }: AccessToken): string =>
  seesAllOrganisations ? 'all organisations' : cellText(organisationIds.join(', '))
