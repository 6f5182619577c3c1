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
  // It would not see a token that sees nothing, nor could it revoke it.
  if (wanted.organisationIds?.length === 0) requireSeesAll(token, 'create one that sees nothing; name organisationIds')
  await requireVisible(trx, token, organisations, wanted.organisationIds ?? [])
  return createAccessToken(trx, sealer, wanted, now())
}

export type SealedAccessToken = { token: AccessToken; secretSealed: string }

/** The tokens that API keys name, by API key, in one statement. Expired and revoked ones are found too. */
export const findByApiKeys = async (sql: Sql, apiKeys: Iterable<string>): Promise<Map<string, SealedAccessToken>> => {
  // The column is ASCII, and MySQL and MariaDB do not compare it with anything else. Nor do they tell a key from the
  // same with spaces after it; who looks it up in the answer does.
  const comparable = Array.from(new Set(apiKeys), apiKey => apiKey.replaceAll(/[^\x20-\x7e]/g, '?'))
  const found = await rows<RowWithPermissions>(
    sql,
    `${SELECT_TOKENS} WHERE t.api_key IN (${marks(comparable)})`,
    comparable,
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
 * The token that a change is made in the name of, held so that it is not revoked before the change is committed, and
 * what is read `beside` it. Throws UNAUTHENTICATED if it was revoked or has expired since the request was let in,
 * FORBIDDEN if it has lost a permission.
 */
export const holdAccessToken = async <Row extends object>(
  trx: Sql,
  token: AccessToken,
  now: () => number,
  { columns, joins, bindings }: Beside<Row> = NOTHING,
): Promise<{ token: AccessToken; row: Row }> => {
  const statement = `SELECT ${TOKEN}${columns} FROM access_tokens t ${joins} WHERE t.id = ?${dialectOf(trx).forShare}`
  const [row] = await rows<RowWithPermissions & Row>(trx, statement, [...bindings, token.id], { isPrepared: true })
  const held = tokenOf(row!)
  const ended = endOf(held, now())
  if (ended) throw new TidingsError('UNAUTHENTICATED', ended.message, { reason: ended.reason })
  for (const permission of token.permissions) requirePermission(held, permission)
  return { token: held, row: row! }
}

/**
 * Lets the changes of a token that come this way come one after the other. Not by its own row: each change of the token
 * holds that, and those that come later would wait behind one that is held up.
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

/** What an access token's secret is sealed to. */
export const tokenSealContext = (id: string): string => `access token ${id}`

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

/** So soon it is tried again while changes hold the token. */
const LAST_USED_RETRY_MS = 1000

/**
 * Notes that tokens are used, to the minute: a write a minute and not one a request. It waits for no change that holds
 * the token, since others would then wait behind it; the next request tries again.
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
 * Ends a token at once: what is being changed in its name is committed before, and nothing after. One that is revoked
 * already stays as it is.
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
