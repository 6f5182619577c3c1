import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../shared/errors.ts'
import { type Clock, databaseClock } from './clock.ts'
import type { Config } from './config.ts'
import type { Database } from './database/connect.ts'
import { type Credentials, createAccessToken, type NewAccessToken } from './domain/access-tokens.ts'
import { auditOperator } from './domain/audit.ts'
import { namesOf, requireMasterKeys } from './keys/master-keys.ts'
import { createSealer } from './keys/seal.ts'
import { FOUND_BY_ALL_MS, type Keyring, openKeyring, revokeKey, type SigningKey } from './keys/signing-keys.ts'

// Operations on an installation's database by an operator, whether or not a server runs.

/** Creates an access token without a calling token. Throws NOT_FOUND for an unknown organisation. */
export const createToken = (database: Database, { masterKeys }: Config, token: NewAccessToken): Promise<Credentials> =>
  withClock(database, async clock => {
    const ids = token.organisationIds ?? []
    const known = new Set(await database.knex('organisations').whereIn('id', ids).pluck<string[]>('id'))
    const unknown = ids.find(id => !known.has(id))
    if (unknown !== undefined) throw new TidingsError('NOT_FOUND', `There is no organisation with id ${unknown}.`)
    return database.transaction(async trx => {
      await requireMasterKeys(trx, namesOf(masterKeys))
      const made = await createAccessToken(trx, createSealer(masterKeys), token, clock.now())
      await auditOperator(trx, { operation: 'server token', args: token, subjectId: made.id, now: clock.now() })
      return made
    })
  })

/** The rows of a table with this id or name; of access tokens, also with this API key. At most 5. */
export const rowsCalled = (
  { knex }: Database,
  table: 'organisations' | 'access_tokens',
  given: string,
): Promise<{ id: string; name: string }[]> =>
  knex(table)
    .where({ id: given.toLowerCase() })
    .orWhere({ name: given })
    .modify(query => void (table === 'access_tokens' && query.orWhere({ api_key: given })))
    .limit(5)
    .select('id', 'name')

/**
 * `next`: published, does not sign yet. `published`: no longer signs, kept for tokens in flight. `retired`: no longer
 * needed. `revoked`: taken out of use at that time.
 */
export type SigningKeyStatus = 'signing' | 'next' | 'published' | 'retired' | 'revoked'
export type ListedSigningKey = Pick<SigningKey, 'kid' | 'createdAt' | 'activeFrom'> & { status: SigningKeyStatus }

/** The signing keys, newest first. Creates none. */
export const listSigningKeys = async (database: Database, config: Config): Promise<ListedSigningKey[]> => {
  type Row = { kid: string; created_at: number; active_from: number; revoked_at: number | null }
  const stored = await database
    .knex('signing_keys')
    .orderBy('generation', 'desc')
    .select<Row[]>('kid', 'created_at', 'active_from', 'revoked_at')
  if (stored.length === 0) return []
  return withKeyring(database, config, async (keyring, clock) => {
    const now = clock.now()
    const signing = keyring.signsFrom() > now ? undefined : keyring.current().kid
    const published = new Set(keyring.jwks().keys.map(({ kid }) => kid))
    const statusOf = ({ kid, active_from, revoked_at }: Row): SigningKeyStatus => {
      if (revoked_at !== null) return 'revoked'
      if (kid === signing) return 'signing'
      if (active_from > now) return 'next'
      return published.has(kid) ? 'published' : 'retired'
    }
    return stored.map(row => ({
      kid: row.kid,
      createdAt: row.created_at,
      activeFrom: row.active_from,
      status: statusOf(row),
    }))
  })
}

/** Creates the next signing key, which running servers publish within three seconds. */
export const rotateSigningKey = async (database: Database, config: Config): Promise<SigningKey> => {
  await database.transaction(trx => requireMasterKeys(trx, namesOf(config.masterKeys)))
  return withKeyring(database, config, async (keyring, clock) => {
    const made = await keyring.rotate()
    await auditOperator(database.knex, { operation: 'server keys rotate', subjectId: made.kid, now: clock.now() })
    return made
  })
}

/**
 * Takes a signing key out of use; resolves when no process signs with it any more. Throws NOT_FOUND for an unknown key.
 */
export const revokeSigningKey = async (
  database: Database,
  config: Config,
  kid: string,
): Promise<{ signsFrom: number; now: number }> => {
  await database.transaction(trx => requireMasterKeys(trx, namesOf(config.masterKeys)))
  return withClock(database, async clock => {
    const now = clock.now()
    const revoked = await revokeKey(database, createSealer(config.masterKeys), kid, now)
    if (!revoked) throw new TidingsError('NOT_FOUND', `There is no signing key with id ${kid}.`)
    await auditOperator(database.knex, { operation: 'server keys revoke', args: { kid }, subjectId: kid, now })
    await sleep(FOUND_BY_ALL_MS)
    return { ...revoked, now }
  })
}

const withKeyring = <T>(
  database: Database,
  { masterKeys }: Config,
  work: (keyring: Keyring, clock: Clock) => Promise<T>,
): Promise<T> =>
  withClock(database, async clock => {
    const keyring = await openKeyring(database, createSealer(masterKeys), clock)
    try {
      return await work(keyring, clock)
    } finally {
      keyring.stop()
    }
  })

/** Runs `work` with the database's clock. */
export const withClock = async <T>(database: Database, work: (clock: Clock) => Promise<T>): Promise<T> => {
  const clock = await databaseClock(database)
  try {
    return await work(clock)
  } finally {
    clock.stop()
  }
}
