import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { calculateJwkThumbprint, type JWK } from 'jose'
import type { Clock } from '../clock.ts'
import { type Database, isDuplicate, rows, run, type Sql } from '../database/connect.ts'
import type { Sealer } from './seal.ts'

/** A key is in the JWKS this long before it signs, so that every cache (`max-age=300`) has turned over twice. */
export const PUBLISH_AHEAD_MS = 10 * 60_000
/** And this long after it signed its last token: the token's 5 minutes, then a cache's 5. */
const KEEP_AFTER_MS = 10 * 60_000
const REFRESH_MS = 60_000

export type PublicJwk = { kty: 'OKP'; crv: 'Ed25519'; x: string; kid: string; use: 'sig'; alg: 'EdDSA' }
export type SigningKey = {
  kid: string
  generation: number
  createdAt: number
  activeFrom: number
  publicJwk: PublicJwk
}
type LoadedKey = SigningKey & { privateKey: KeyObject }

export type Keyring = {
  /** The key that signs now. */
  current(): { kid: string; key: KeyObject }
  /**
   * The public keys a receiver may need now: those that sign, those about to, and those whose last tokens may still be
   * on their way.
   */
  jwks(): { keys: PublicJwk[] }
  /** Makes and publishes the next key, which signs from `activeFrom` on; the one there is if it does not sign yet. */
  rotate(sql?: Sql): Promise<SigningKey>
  /** Looks for the keys of the database now: those that a transaction has made count when it is committed. */
  refresh(): Promise<void>
  stop(): void
}

/**
 * Loads the signing keys, making the first where there is none, and looks again each minute for those of other
 * processes.
 */
export const openKeyring = async (database: Database, sealer: Sealer, clock: Clock): Promise<Keyring> => {
  let keys = await load(database.knex, sealer)
  if (keys.length === 0) {
    await insertKey(database.knex, sealer, { generation: 1, createdAt: clock.now(), activeFrom: clock.now() })
    keys = await load(database.knex, sealer)
  }
  const timer = setInterval(() => {
    // A database that does not answer now leaves the keys as they are; those of a rotation are published 10 minutes
    // ahead.
    load(database.knex, sealer).then(
      found => (keys = found),
      () => {},
    )
  }, REFRESH_MS).unref()

  return {
    current() {
      const now = clock.now()
      const key = keys.findLast(key => key.activeFrom <= now) ?? keys[0]!
      return { kid: key.kid, key: key.privateKey }
    },
    jwks() {
      const now = clock.now()
      const wanted = keys.filter((_key, index) => (keys[index + 1]?.activeFrom ?? now) + KEEP_AFTER_MS > now)
      return { keys: wanted.map(key => key.publicJwk) }
    },
    async rotate(sql = database.knex) {
      const newest = (await load(sql, sealer)).at(-1)!
      const now = clock.now()
      // The next key is published already: of two rotations at once, both answer with it.
      if (newest.activeFrom > now) return newest
      await insertKey(sql, sealer, {
        generation: newest.generation + 1,
        createdAt: now,
        activeFrom: now + PUBLISH_AHEAD_MS,
      })
      const made = await load(sql, sealer)
      if (sql === database.knex) keys = made
      return made.find(key => key.generation === newest.generation + 1)!
    },
    async refresh() {
      keys = await load(database.knex, sealer)
    },
    stop: () => clearInterval(timer),
  }
}

const load = async (sql: Sql, sealer: Sealer): Promise<LoadedKey[]> => {
  type Row = {
    kid: string
    generation: number
    public_jwk: string
    private_key_sealed: string
    created_at: number
    active_from: number
  }
  const found = await rows<Row>(sql, 'SELECT * FROM signing_keys ORDER BY generation')
  return found.map(row => ({
    kid: row.kid,
    generation: row.generation,
    createdAt: row.created_at,
    activeFrom: row.active_from,
    publicJwk: JSON.parse(row.public_jwk),
    privateKey: createPrivateKey(sealer.open(row.private_key_sealed, `signing key ${row.kid}`)),
  }))
}

const insertKey = async (
  sql: Sql,
  sealer: Sealer,
  { generation, createdAt, activeFrom }: { generation: number; createdAt: number; activeFrom: number },
): Promise<void> => {
  const { publicKey, privateKey } = generateKeyPairSync('ed25519')
  const { x } = publicKey.export({ format: 'jwk' })
  const kid = await calculateJwkThumbprint({ kty: 'OKP', crv: 'Ed25519', x } as JWK)
  const publicJwk: PublicJwk = { kty: 'OKP', crv: 'Ed25519', x: x!, kid, use: 'sig', alg: 'EdDSA' }
  const pem = privateKey.export({ format: 'pem', type: 'pkcs8' }).toString()
  try {
    await run(
      sql,
      'INSERT INTO signing_keys (kid, generation, public_jwk, private_key_sealed, created_at, active_from) ' +
        'VALUES (?, ?, ?, ?, ?, ?)',
      [kid, generation, JSON.stringify(publicJwk), sealer.seal(pem, `signing key ${kid}`), createdAt, activeFrom],
    )
  } catch (error) {
    // Another process made this generation first: its key is the one.
    if (!isDuplicate(error)) throw error
  }
}
