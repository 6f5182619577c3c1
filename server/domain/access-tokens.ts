import { randomBytes } from 'node:crypto'
import { badInput, TidingsError } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import { type Permission, permissions } from '../../shared/vocabulary.ts'
import { type Database, insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Beside, Change } from './change.ts'
import { checkName } from './names.ts'
import { type AccessToken, endOf, requirePermission, requireSeesAll } from './permissions.ts'
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
  /** Undefined: the token sees all organisations. */
  organisationIds?: string[] | undefined
  expiresAt?: number | undefined
}

export type Credentials = { id: string; apiKey: string; apiSecret: string }

/** Stores a new access token. The result has its secret, which exists in the clear nowhere else. */
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
    secret_sealed: sealer.seal(apiSecret, tokenSealContext(id)),
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
    // In the order of the indexes, thousands of rows are written several times as fast.
    [...new Set(organisationIds)].sort().map(organisation_id => ({ access_token_id: id, organisation_id })),
  )
  return { id, apiKey, apiSecret }
}

/**
 * Stores a new access token for a caller, who cannot create one that sees more than the caller. Throws NOT_FOUND or
 * FORBIDDEN otherwise.
 */
export const grantAccessToken = async (
  { trx, token, now }: Change,
  sealer: Sealer,
  wanted: NewAccessToken,
): Promise<Credentials> => {
  if (wanted.organisationIds === undefined) requireSeesAll(token, 'create one that does; name organisationIds')
  // The caller could neither see nor revoke a token that sees nothing.
  if (wanted.organisationIds?.length === 0) requireSeesAll(token, 'create one that sees nothing; name organisationIds')
  await requireVisible(trx, token, organisations, wanted.organisationIds ?? [])
  return createAccessToken(trx, sealer, wanted, now())
}

export type SealedAccessToken = { token: AccessToken; secretSealed: string }

/** The tokens of API keys, by API key, in one statement. Includes expired and revoked ones. */
export const findByApiKeys = async (sql: Sql, apiKeys: Iterable<string>): Promise<Map<string, SealedAccessToken>> => {
  // The column is ASCII, which MySQL and MariaDB compare with nothing else. They also ignore spaces at the end of a
  // key; the lookup in the result does not.
  const comparable = Array.from(new Set(apiKeys), apiKey => apiKey.replaceAll(/[^\x20-\x7e]/g, '?'))
  const found = await rows<RowWithPermissions>(
    sql,
    `${SELECT_TOKENS} WHERE t.api_key IN (${marks(comparable)})`,
    comparable,
    { isPrepared: comparable.length === 1 },
  )
  return new Map(found.map(row => [row.api_key, { token: tokenOf(row), secretSealed: row.secret_sealed }]))
}

type RowWithPermissions = AccessTokenRow & { permissions: string | null }

const TOKEN = `t.*,
    (SELECT GROUP_CONCAT(p.permission) FROM access_token_permissions p WHERE p.access_token_id = t.id) AS permissions`
const SELECT_TOKENS = `SELECT ${TOKEN} FROM access_tokens t`

const tokenOf = (row: RowWithPermissions): AccessToken =>
  accessTokenOf(row, (row.permissions?.split(',') ?? []) as Permission[])

/**
 * Throws UNAUTHENTICATED if a token, as it is locked, was revoked or has expired since the request was accepted,
 * FORBIDDEN if it has lost a permission.
 */
export const requireUnchanged = (locked: AccessToken, accepted: AccessToken, now: number): void => {
  const ended = endOf(locked, now)
  if (ended) throw new TidingsError('UNAUTHENTICATED', ended.message, { reason: ended.reason })
  for (const permission of accepted.permissions) requirePermission(locked, permission)
}

/**
 * Locks the caller's token, so that it is not revoked before the change commits, and reads the rows `beside` it. Throws
 * as `requireUnchanged`.
 */
export const lockAccessToken = async <Row extends object>(
  trx: Sql,
  token: AccessToken,
  now: () => number,
  { columns, joins, bindings }: Beside<Row> = NOTHING,
): Promise<{ token: AccessToken; row: Row }> => {
  const statement = `SELECT ${TOKEN}${columns} FROM access_tokens t ${joins} WHERE t.id = ?${dialectOf(trx).forShare}`
  const [row] = await rows<RowWithPermissions & Row>(trx, statement, [...bindings, token.id], { isPrepared: true })
  const locked = tokenOf(row!)
  requireUnchanged(locked, token, now())
  return { token: locked, row: row! }
}

/** As `lockAccessToken`, for the tokens of several requests, but without those that another transaction is changing. */
export const lockAccessTokens = async (trx: Sql, ids: string[]): Promise<Map<string, AccessToken>> => {
  const statement = `${SELECT_TOKENS} WHERE t.id IN (${marks(ids)})${dialectOf(trx).forShareSkipLocked}`
  const locked = await rows<RowWithPermissions>(trx, statement, ids)
  return new Map(locked.map(row => [row.id, tokenOf(row)]))
}

/**
 * Serialises these changes of a token. It does not use the token's own row, which every change locks: later changes
 * would then wait behind one that waits.
 */
export const takeTurns = async (trx: Sql, token: AccessToken): Promise<void> => {
  await rows(
    trx,
    `SELECT permission FROM access_token_permissions WHERE access_token_id = ? ORDER BY permission
     ${dialectOf(trx).forUpdate}`,
    [token.id],
  )
}

const NOTHING: Beside<never> = { columns: '', joins: '', bindings: [] }

export const openApiSecret = (sealer: Sealer, { token, secretSealed }: SealedAccessToken): string =>
  sealer.open(secretSealed, tokenSealContext(token.id))

/** The sealing context of an access token's secret. */
export const tokenSealContext = (id: string): string => `access token ${id}`

/** The token of an API key, with its secret; undefined if there is none. Includes expired and revoked ones. */
export const findByApiKey = async (
  sql: Sql,
  sealer: Sealer,
  apiKey: string,
): Promise<{ token: AccessToken; apiSecret: string } | undefined> => {
  const found = (await findByApiKeys(sql, [apiKey])).get(apiKey)
  return found && { token: found.token, apiSecret: openApiSecret(sealer, found) }
}

const LAST_USED_STEP_MS = 60_000

/** The pause before the next try while changes lock the token. */
const LAST_USED_RETRY_MS = 1000

/**
 * Records the use of tokens to the minute: one write a minute instead of one a request. It skips tokens that a change
 * has locked, because others would wait behind it; the next request tries again.
 */
export const noteUses = (database: Database) => {
  const triedAt = new Map<string, number>()
  return async (token: AccessToken, now: number): Promise<void> => {
    if (token.lastUsedAt !== null && now - token.lastUsedAt < LAST_USED_STEP_MS) return
    if (now - (triedAt.get(token.id) ?? Number.NEGATIVE_INFINITY) < LAST_USED_RETRY_MS) return
    triedAt.set(token.id, now)
    await database.transaction(async trx => {
      const free = await rows(
        trx,
        `SELECT id FROM access_tokens WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)
         ${dialectOf(trx).forUpdateSkipLocked}`,
        [token.id, now],
      )
      if (free.length > 0) await run(trx, 'UPDATE access_tokens SET last_used_at = ? WHERE id = ?', [now, token.id])
    })
  }
}

/**
 * Makes a token expire at a time, or earlier if that is its expiry already. A revoked token stays as it is. Throws
 * NOT_FOUND, or BAD_USER_INPUT for a time that has passed.
 */
export const endAccessToken = async ({ trx, token, now }: Change, id: string, at: number): Promise<void> => {
  await rows(trx, `SELECT id FROM access_tokens WHERE id = ?${dialectOf(trx).forUpdate}`, [id])
  await requireVisible(trx, token, accessTokens, [id])
  const time = now()
  if (at <= time) throw badInput('at', `${toIso(at)} has passed; the server's time is ${toIso(time)}`)
  await run(
    trx,
    `UPDATE access_tokens SET expires_at = ?, updated_at = ?
     WHERE id = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)`,
    [at, time, id, at],
  )
}

/**
 * Revokes a token at once: mutations under way in its name commit before, and none after. A token that is already
 * revoked stays as it is. Throws NOT_FOUND.
 */
export const revokeAccessToken = async ({ trx, token, now }: Change, id: string): Promise<void> => {
  await rows(trx, `SELECT id FROM access_tokens WHERE id = ?${dialectOf(trx).forUpdate}`, [id])
  await requireVisible(trx, token, accessTokens, [id])
  const revokedAt = now()
  await run(trx, 'UPDATE access_tokens SET revoked_at = ?, updated_at = ? WHERE id = ? AND revoked_at IS NULL', [
    revokedAt,
    revokedAt,
    id,
  ])
}
