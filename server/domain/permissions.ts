import { TidingsError } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import type { Permission, RefusalReason } from '../../shared/vocabulary.ts'

/** The access token of a request: what it may do and what it sees. */
export type AccessToken = {
  id: string
  name: string
  apiKey: string
  permissions: Permission[]
  seesAllOrganisations: boolean
  expiresAt: number | null
  revokedAt: number | null
  lastUsedAt: number | null
  createdAt: number
}

/** `admin` implies every other permission. */
export const may = (token: AccessToken, permission: Permission): boolean =>
  token.permissions.includes(permission) || token.permissions.includes('admin')

/** Why a token is no longer valid; undefined while it is. */
export const endOf = (
  { revokedAt, expiresAt }: Pick<AccessToken, 'revokedAt' | 'expiresAt'>,
  now: number,
): { reason: RefusalReason; message: string } | undefined => {
  if (revokedAt !== null) {
    return { reason: 'revoked', message: `The access token was revoked at ${toIso(revokedAt)}.` }
  }
  if (expiresAt !== null && expiresAt <= now) {
    return { reason: 'expired', message: `The access token expired at ${toIso(expiresAt)}.` }
  }
  return undefined
}

/** Throws FORBIDDEN unless the token has the permission. */
export const requirePermission = (token: AccessToken, permission: Permission): void => {
  if (may(token, permission)) return
  const has = token.permissions.join(', ')
  throw new TidingsError(
    'FORBIDDEN',
    `This needs the permission "${permission}", and the access token "${token.name}" has ${has}.`,
    { permission },
  )
}

/** Throws FORBIDDEN for a token that sees only some organisations if the operation concerns all of them. */
export const requireSeesAll = (token: AccessToken, what: string): void => {
  if (token.seesAllOrganisations) return
  throw new TidingsError('FORBIDDEN', `Only an access token that sees all organisations can ${what}.`)
}
