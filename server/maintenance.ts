import { TidingsError } from '../shared/errors.ts'
import { type Clock, databaseClock } from './clock.ts'
import type { Config } from './config.ts'
import type { Database } from './database/connect.ts'
import { type Credentials, createAccessToken, type NewAccessToken } from './domain/access-tokens.ts'
import { createSealer } from './keys/seal.ts'
import { type Keyring, openKeyring, type SigningKey } from './keys/signing-keys.ts'

// What an operator does to an installation straight on its database, whether or not a server runs.

/** Makes an access token that nobody had to ask for. Throws NOT_FOUND for an organisation that there is not. */
export const createToken = (database: Database, { masterKeys }: Config, token: NewAccessToken): Promise<Credentials> =>
  withClock(database, async clock => {
    const ids = token.organisationIds ?? []
    const known = await database.knex('organisations').whereIn('id', ids).pluck<string[]>('id')
    const unknown = ids.find(id => !known.includes(id))
    if (unknown !== undefined) throw new TidingsError('NOT_FOUND', `There is no organisation with id ${unknown}.`)
    return database.transaction(trx => createAccessToken(trx, createSealer(masterKeys), token, clock.now()))
  })

/**
 * `next`: published, does not sign yet; `published`: signs no more, for tokens on their way; `retired`: needed no more.
 */
export type SigningKeyStatus = 'signing' | 'next' | 'published' | 'retired'
export type ListedSigningKey = Pick<SigningKey, 'kid' | 'createdAt' | 'activeFrom'> & { status: SigningKeyStatus }

/** The signing keys, the newest first. Makes none. */
export const listSigningKeys = async (database: Database, config: Config): Promise<ListedSigningKey[]> => {
  const stored = await database
    .knex('signing_keys')
    .orderBy('generation', 'desc')
    .select<{ kid: string; created_at: number; active_from: number }[]>('kid', 'created_at', 'active_from')
  if (stored.length === 0) return []
  return withKeyring(database, config, async (keyring, clock) => {
    const signing = keyring.current().kid
    const published = new Set(keyring.jwks().keys.map(({ kid }) => kid))
    const now = clock.now()
    return stored.map(({ kid, created_at: createdAt, active_from: activeFrom }) => ({
      kid,
      createdAt,
      activeFrom,
      status: kid === signing ? 'signing' : activeFrom > now ? 'next' : published.has(kid) ? 'published' : 'retired',
    }))
  })
}

/** Makes the next signing key, which running servers publish within a minute. */
export const rotateSigningKey = (database: Database, config: Config): Promise<SigningKey> =>
  withKeyring(database, config, keyring => keyring.rotate())

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

/** The database's clock for as long as `work` takes. */
export const withClock = async <T>(database: Database, work: (clock: Clock) => Promise<T>): Promise<T> => {
  const clock = await databaseClock(database)
  try {
    return await work(clock)
  } finally {
    clock.stop()
  }
}
