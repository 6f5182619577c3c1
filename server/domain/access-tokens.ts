import { randomBytes } from 'node:crypto'
import { badInput } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import { type Permission, permissions } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { newId } from '../ids.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { type AccessToken, requireSeesAll } from './permissions.ts'
import { type AccessTokenRow, accessTokens, organisations } from './resources.ts'
import { requireVisible } from './visibility.ts'

export const accessTokenOf = (row: AccessTokenRow, granted: Permission[]): AccessToken => ({
  id: row.id,
  name: row.name,
  apiKey: row.api_key,
  permissions: granted,
  seesAllOrganisations: row.sees_all_organisations === 1,
  expiresAt: row.expires_at,
  revokedAt: row.revoked_at,
  lastUsedAt: row.last_used_at,
  createdAt: row.created_at,
})

export type NewAccessToken = {
  name: string
  permissions: Permission[]
  /** Undefined: it sees all. */
  organisationIds?: string[] | undefined
  expiresAt?: number | undefined
}

export type Credentials = { id: string; apiKey: string; apiSecret: string }

/** Stores a new access token. Its secret is in the answer and nowhere else in the clear. */
export const createAccessToken = async (
  trx: Sql,
  sealer: Sealer,
  { name, permissions: granted, organisationIds, expiresAt }: NewAccessToken,
  now: number,
): Promise<Credentials> => {
  checkName(name)
  if (granted.length === 0) throw badInput('permissions', `is empty; choose from ${permissions.join(', ')}`)
  if (expiresAt !== undefined && expiresAt <= now) {
    throw badInput('expiresAt', `${toIso(expiresAt)} has passed; the server's time is ${toIso(now)}`)
  }
  const id = newId(now)
  const apiKey = `tk_${randomBytes(16).toString('base64url')}`
  const apiSecret = randomBytes(32).toString('base64')
  await trx('access_tokens').insert({
    id,
    name,
    api_key: apiKey,
    secret_sealed: sealer.seal(apiSecret, sealContext(id)),
    sees_all_organisations: organisationIds ? 0 : 1,
    expires_at: expiresAt ?? null,
    created_at: now,
    updated_at: now,
  })
  await trx('access_token_permissions').insert(
    [...new Set(granted)].map(permission => ({ access_token_id: id, permission })),
  )
  await insertMany(
    trx,
    'access_token_organisations',
    [...new Set(organisationIds)].map(organisation_id => ({ access_token_id: id, organisation_id })),
  )
  return { id, apiKey, apiSecret }
}

/** Stores a new access token for a caller, who can make none that sees more than the caller does. */
export const grantAccessToken = async (
  { trx, token, now }: Change,
  sealer: Sealer,
  wanted: NewAccessToken,
): Promise<Credentials> => {
  if (wanted.organisationIds === undefined) requireSeesAll(token, 'create one that does; name organisationIds')
  await requireVisible(trx, token, organisations, wanted.organisationIds ?? [])
  return createAccessToken(trx, sealer, wanted, now)
}

export type SealedAccessToken = { token: AccessToken; secretSealed: string }

/** The tokens that API keys name, by API key, in one statement. Expired and revoked ones are found too. */
export const findByApiKeys = async (sql: Sql, apiKeys: Iterable<string>): Promise<Map<string, SealedAccessToken>> => {
  // The column is ASCII, and MySQL and MariaDB do not compare it with anything else. Nor do they tell a key from the
  // same with spaces after it; who looks it up in the answer does.
  const comparable = Array.from(new Set(apiKeys), apiKey => apiKey.replaceAll(/[^\x20-\x7e]/g, '?'))
  const found = await rows<AccessTokenRow & { permissions: string | null }>(
    sql,
    `SELECT t.*,
       (SELECT GROUP_CONCAT(p.permission) FROM access_token_permissions p
        WHERE p.access_token_id = t.id) AS permissions
     FROM access_tokens t WHERE t.api_key IN (${marks(comparable)})`,
    comparable,
  )
  return new Map(
    found.map(row => {
      const token = accessTokenOf(row, (row.permissions?.split(',') ?? []) as Permission[])
      return [row.api_key, { token, secretSealed: row.secret_sealed }]
    }),
  )
}

export const openApiSecret = (sealer: Sealer, { token, secretSealed }: SealedAccessToken): string =>
  sealer.open(secretSealed, sealContext(token.id))

/** What an access token's secret is sealed to. */
const sealContext = (id: string): string => `access token ${id}`

/**
 * The token that an API key names, with its secret; undefined when there is none. Expired and revoked ones are found
 * too.
 */
export const findByApiKey = async (
  sql: Sql,
  sealer: Sealer,
  apiKey: string,
): Promise<{ token: AccessToken; apiSecret: string } | undefined> => {
  const found = (await findByApiKeys(sql, [apiKey])).get(apiKey)
  return found && { token: found.token, apiSecret: openApiSecret(sealer, found) }
}

const LAST_USED_STEP_MS = 60_000

/** Notes that a token was used, to the minute: a write a minute and not one a request. */
export const touchAccessToken = async (sql: Sql, token: AccessToken, now: number): Promise<void> => {
  if (token.lastUsedAt !== null && now - token.lastUsedAt < LAST_USED_STEP_MS) return
  await run(
    sql,
    'UPDATE access_tokens SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)',
    [now, token.id, now],
  )
}

/** Ends a token at once. One that is revoked already stays as it is. */
export const revokeAccessToken = async ({ trx, token, now }: Change, id: string): Promise<void> => {
  await requireVisible(trx, token, accessTokens, [id])
  await run(trx, 'UPDATE access_tokens SET revoked_at = ?, updated_at = ? WHERE id = ? AND revoked_at IS NULL', [
    now,
    now,
    id,
  ])
}
