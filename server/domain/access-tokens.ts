import { randomBytes } from 'node:crypto'
import type { Knex } from 'knex'
import { v7 as uuid } from 'uuid'
import { badInput } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import { type Permission, permissions } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Resource } from '../mango/resource.ts'
import { checkName } from './names.ts'

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

export const accessTokens: Resource = {
  name: 'accessTokens',
  table: 'access_tokens',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    apiKey: { kind: 'column', column: 'api_key', type: 'string' },
    permissions: {
      kind: 'list',
      table: 'access_token_permissions',
      key: 'access_token_id',
      column: 'permission',
      type: 'string',
      values: permissions,
    },
    seesAllOrganisations: { kind: 'column', column: 'sees_all_organisations', type: 'boolean' },
    organisationIds: {
      kind: 'list',
      table: 'access_token_organisations',
      key: 'access_token_id',
      column: 'organisation_id',
      type: 'uuid',
    },
    expiresAt: { kind: 'column', column: 'expires_at', type: 'time', nullable: true },
    revokedAt: { kind: 'column', column: 'revoked_at', type: 'time', nullable: true },
    lastUsedAt: { kind: 'column', column: 'last_used_at', type: 'time', nullable: true },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
  },
}

export type AccessTokenRow = {
  id: string
  name: string
  api_key: string
  secret_sealed: string
  sees_all_organisations: number
  expires_at: number | null
  revoked_at: number | null
  last_used_at: number | null
  created_at: number
}

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

/** `admin` implies every other permission. */
export const may = (token: AccessToken, permission: Permission): boolean =>
  token.permissions.includes(permission) || token.permissions.includes('admin')

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
  const id = uuid()
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
 * The token that an API key names, with its secret; undefined
 * when there is none. Expired and revoked ones are found too.
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

/** The organisations that a token sees, as a condition on a column that holds their id. */
export const whereOrganisationVisible = (builder: Knex.QueryBuilder, token: AccessToken, column: string): void => {
  if (token.seesAllOrganisations) return
  builder.whereIn(column, query =>
    query.select('organisation_id').from('access_token_organisations').where('access_token_id', token.id),
  )
}

/** Admins see all tokens of organisations they see; everyone else sees the token they call with. */
export const visibleAccessTokens =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void => {
    if (!may(token, 'admin')) return void builder.where('access_tokens.id', token.id)
    if (token.seesAllOrganisations) return
    builder.where(own =>
      own.where('access_tokens.id', token.id).orWhere(inside =>
        inside.where('access_tokens.sees_all_organisations', 0).whereNotExists(query =>
          query
            .select('seen.access_token_id')
            .from('access_token_organisations as seen')
            .whereRaw('seen.access_token_id = access_tokens.id')
            .whereNotIn('seen.organisation_id', mine =>
              mine.select('organisation_id').from('access_token_organisations').where('access_token_id', token.id),
            ),
        ),
      ),
    )
  }

/** Ends a token at once. One that is revoked already stays as it is. */
export const revokeAccessToken = async (sql: Sql, id: string, now: number): Promise<void> => {
  await run(sql, 'UPDATE access_tokens SET revoked_at = ?, updated_at = ? WHERE id = ? AND revoked_at IS NULL', [
    now,
    now,
    id,
  ])
}
