import { TidingsError } from '../../shared/errors.ts'
import type { Permission } from '../../shared/vocabulary.ts'

/** Whoever makes a request: what it may do and what it sees. */
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

/** Throws FORBIDDEN for a token that sees only some organisations, where what it asks for concerns them all. */
export const requireSeesAll = (token: AccessToken, what: string): void => {
  if (token.seesAllOrganisations) return
  throw new TidingsError('FORBIDDEN', `Only an access token that sees all organisations can ${what}.`)
}
