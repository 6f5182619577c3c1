import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { calculateJwkThumbprint, type JWK } from 'jose'
import { BEAT_MS, eachBeat } from '../beat.ts'
import type { Clock } from '../clock.ts'
import { type Database, isDuplicate, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Sealer } from './seal.ts'

/** How long a key is in the JWKS before it signs, so that every cache (`max-age=300`) has been refreshed twice. */
export const PUBLISH_AHEAD_MS = 10 * 60_000
/** How long it stays there after its last token: the token's 5 minutes, then a cache's 5. */
const KEEP_AFTER_MS = 10 * 60_000
/** How soon a process looks for keys again: at a beat, unless it has heard since the one before (see `KEYS_MARK`). */
const REFRESH_MS = 2 * BEAT_MS
/** By then every process that has its database has looked for keys again. */
export const FOUND_BY_ALL_MS = 2_500
/** The columns of a SELECT that another look at the database takes along, and what is compared with the keys here. */
export const KEYS_MARK = `(SELECT MAX(generation) FROM signing_keys) AS newest_key,
       (SELECT COUNT(revoked_at) FROM signing_keys) AS revoked_keys`
export type KeysMark = { newest_key: number | null; revoked_keys: number }
/**
 * How long after a revocation the next key begins to sign: by then every process has found it, and every cache has been
 * refreshed. An earlier delivery would be refused by receivers that do not know the key.
 */
export const REVOKED_WAIT_MS = 5 * 60_000 + 30_000

export type PublicJwk = { kty: 'OKP'; crv: 'Ed25519'; x: string; kid: string; use: 'sig'; alg: 'EdDSA' }
export type SigningKey = {
  kid: string
  generation: number
  createdAt: number
  activeFrom: number
  publicJwk: PublicJwk
}
/** Has no private key if it is revoked or no master key opens it. */
type LoadedKey = SigningKey & { revokedAt: number | null; privateKey: KeyObject | undefined }

export type Keyring = {
  /** The key that signs now. Throws if there is none: see `signsFrom`. */
  current(): { kid: string; key: KeyObject }
  /** From when on a key can sign, in epoch milliseconds: 0 if one can now, Infinity if this process cannot open it. */
  signsFrom(): number
  /** Why this process cannot work: it cannot open a key. */
  fault(): string | undefined
  /**
   * The public keys a receiver may need now: those that sign, those about to, and those whose last tokens may still be
   * on their way.
   */
  jwks(): { keys: PublicJwk[] }
  /**
   * Creates and publishes the next key, which signs from `activeFrom` on; returns the existing next key if there is
   * one.
   */
  rotate(sql?: Sql): Promise<SigningKey>
  /** Hears how the keys stand in the database now: reads them if they have changed. */
  heard(mark: KeysMark): void
  /** Reads the keys from the database now; keys of a transaction count after its commit. */
  refresh(): Promise<void>
  stop(): void
}

/**
 * Loads the signing keys, creates the first if there is none, and looks for keys of other processes. Throws
 * if it cannot open one.
 */
export const openKeyring = async (database: Database, sealer: Sealer, clock: Clock): Promise<Keyring> => {
  let all = await load(database.knex, sealer)
  let keys = all.filter(hasTurn)
  let begun = 0
  let taken = 0
  /** Loads the keys, and takes them unless a look that began later has been answered sooner. */
  const look = async (): Promise<LoadedKey[]> => {
    begun += 1
    const own = begun
    const found = await load(database.knex, sealer)
    if (own < taken) return found
    taken = own
    all = found
    keys = found.filter(hasTurn)
    return found
  }
  const fault = () => faultOf(keys)
  if (fault()) {
    const hint =
      'Give the key that this database was set up with, or both while you replace it: TIDINGS_MASTER_KEY=new,old'
    throw Object.assign(new Error(fault()), { hint })
  }
  /** In a transaction, which begins again where one of another process that inserts its own conflicts with it. */
  const insert = (key: NewKey, sql: Sql) =>
    sql === database.knex ? database.transaction(trx => insertKey(trx, sealer, key)) : insertKey(sql, sealer, key)
  if (keys.length === 0) {
    await insert({ generation: 1, createdAt: clock.now(), activeFrom: clock.now() }, database.knex)
    await look()
  }
  const refresh = async (): Promise<void> => void (await look())
  let hasHeard = false
  const stop = eachBeat(BEAT_MS, () => {
    // If the database does not answer, the keys stay as they are; those of a rotation are published 10 minutes ahead.
    if (!hasHeard) refresh().catch(() => {})
    hasHeard = false
  })

  /** The key whose turn it is. The previous one no longer signs, whether or not this one can. */
  const latest = () => inTurn(keys, clock.now())

  return {
    current() {
      const { kid, privateKey } = latest()
      if (!privateKey) throw new Error(`signing key ${kid} cannot sign`)
      return { kid, key: privateKey }
    },
    signsFrom() {
      const now = clock.now()
      const { revokedAt, privateKey } = latest()
      if (privateKey) return 0
      return revokedAt === null ? Number.POSITIVE_INFINITY : (nextTurn(keys, now) ?? now + REFRESH_MS)
    },
    fault,
    jwks() {
      const now = clock.now()
      const wanted = keys.filter((key, index) => key.revokedAt === null && !isRetired(keys, index, now))
      return { keys: wanted.map(key => key.publicJwk) }
    },
    async rotate(sql = database.knex) {
      const read = () => (sql === database.knex ? look() : load(sql, sealer))
      const newest = (await read()).at(-1)!
      const now = clock.now()
      // The next key is already published: two concurrent rotations both return it.
      if (newest.activeFrom > now && newest.revokedAt === null) return newest
      const generation = newest.generation + 1
      await insert({ generation, createdAt: now, activeFrom: now + PUBLISH_AHEAD_MS }, sql)
      return (await read()).find(key => key.generation === generation)!
    },
    heard({ newest_key: newest, revoked_keys: revoked }) {
      const isAsHere = newest === all.at(-1)?.generation && revoked === all.filter(isRevoked).length
      hasHeard = true
      if (!isAsHere) refresh().catch(() => {})
    },
    refresh,
    stop,
  }
}

type Turn = { activeFrom: number; revokedAt: number | null }

/** The key whose turn it is, of keys in the order of their turns. */
const inTurn = <Key extends Turn>(keys: Key[], now: number): Key =>
  keys.findLast(key => key.activeFrom <= now) ?? keys[0]!

const nextTurn = (keys: Turn[], now: number): number | undefined =>
  keys.find(key => key.activeFrom > now && key.revokedAt === null)?.activeFrom

/** From when on a key signs where the one whose turn it is was revoked; undefined where it was not. */
export const signsAgainAt = async (sql: Sql, now: number): Promise<number | undefined> => {
  const found = await rows<Turn>(
    sql,
    'SELECT active_from AS activeFrom, revoked_at AS revokedAt FROM signing_keys ORDER BY generation',
  )
  const keys = found.filter(hasTurn)
  return keys.length > 0 && inTurn(keys, now).revokedAt !== null ? nextTurn(keys, now) : undefined
}

/** Whether no token that it signed can still be valid. */
const isRetired = (keys: { activeFrom: number }[], index: number, now: number): boolean =>
  (keys[index + 1]?.activeFrom ?? now) + KEEP_AFTER_MS <= now

const faultOf = (keys: LoadedKey[]): string | undefined => {
  const closed = keys.filter(({ privateKey, revokedAt }) => !privateKey && revokedAt === null)
  if (closed.length === 0) return undefined
  const kids = closed.map(({ kid }) => kid).join(', ')
  return `signing key ${kids} was sealed with a master key that TIDINGS_MASTER_KEY does not name`
}

/**
 * Removes a signing key from the key set, and deletes its private half; processes find that within `FOUND_BY_ALL_MS`.
 * If it is the key that signs, the next one signs when every cache has been refreshed, and until then nothing is sent.
 * Returns the time from which deliveries are sent; undefined for an unknown key.
 */
export const revokeKey = (
  database: Database,
  sealer: Sealer,
  kid: string,
  now: number,
): Promise<{ signsFrom: number } | undefined> =>
  database.transaction(async trx => {
    await rows(trx, `SELECT kid FROM signing_keys ORDER BY generation${dialectOf(trx).forUpdate}`)
    const keys = await load(trx, sealer)
    const revoked = keys.find(key => key.kid === kid)
    if (!revoked) return undefined
    const inTurn = keys.filter(hasTurn)
    const next = inTurn.find(key => key.activeFrom > now)
    const isSigning = revoked === inTurn.findLast(key => key.activeFrom <= now)
    if (revoked.revokedAt !== null) return { signsFrom: isSigning ? (next?.activeFrom ?? now) : now }
    await run(trx, "UPDATE signing_keys SET revoked_at = ?, private_key_sealed = '' WHERE kid = ?", [now, kid])
    if (!isSigning) return { signsFrom: now }
    if (!next) {
      const generation = keys.at(-1)!.generation + 1
      const signsFrom = now + REVOKED_WAIT_MS
      await insertKey(trx, sealer, { generation, createdAt: now, activeFrom: signsFrom })
      return { signsFrom }
    }
    const signsFrom = Math.max(now, Math.min(next.activeFrom, next.createdAt + REVOKED_WAIT_MS))
    await run(trx, 'UPDATE signing_keys SET active_from = ? WHERE kid = ?', [signsFrom, next.kid])
    return { signsFrom }
  })

const isRevoked = ({ revokedAt }: Turn): boolean => revokedAt !== null

/** A key revoked before it signed never signs. */
const hasTurn = ({ revokedAt, activeFrom }: { revokedAt: number | null; activeFrom: number }): boolean =>
  revokedAt === null || revokedAt >= activeFrom

/** Deletes the keys that no receiver needs any more. Revoked keys keep a row that says so. */
export const deleteRetiredKeys = async (sql: Sql, now: number): Promise<void> => {
  type Row = { kid: string; revokedAt: number | null; activeFrom: number }
  const found = await rows<Row>(
    sql,
    'SELECT kid, revoked_at AS revokedAt, active_from AS activeFrom FROM signing_keys ORDER BY generation',
  )
  const keys = found.filter(hasTurn)
  const retired = keys.filter(
    ({ revokedAt }, index) => revokedAt === null && index + 1 < keys.length && isRetired(keys, index, now - REFRESH_MS),
  )
  for (const { kid } of retired) await run(sql, 'DELETE FROM signing_keys WHERE kid = ?', [kid])
}

/** A private key that no master key opens is left out; its public half is still served. */
const load = async (sql: Sql, sealer: Sealer): Promise<LoadedKey[]> => {
  type Row = {
    kid: string
    generation: number
    public_jwk: string
    private_key_sealed: string
    created_at: number
    active_from: number
    revoked_at: number | null
  }
  const found = await rows<Row>(sql, 'SELECT * FROM signing_keys ORDER BY generation')
  return found.map(row => ({
    kid: row.kid,
    generation: row.generation,
    createdAt: row.created_at,
    activeFrom: row.active_from,
    revokedAt: row.revoked_at,
    publicJwk: JSON.parse(row.public_jwk),
    privateKey: row.revoked_at === null ? opened(row, sealer) : undefined,
  }))
}

const opened = (row: { kid: string; private_key_sealed: string }, sealer: Sealer): KeyObject | undefined => {
  try {
    return createPrivateKey(sealer.open(row.private_key_sealed, sealContext(row.kid)))
  } catch {
    return undefined
  }
}

/** The sealing context of a private key. */
export const sealContext = (kid: string): string => `signing key ${kid}`

/** A key pair whose `kid` does not begin with a hyphen, so that a command line does not take it for an option. */
const newKeyPair = async (): Promise<{ publicJwk: PublicJwk; privateKey: KeyObject }> => {
  while (true) {
    const { publicKey, privateKey } = generateKeyPairSync('ed25519')
    const { x } = publicKey.export({ format: 'jwk' })
    const kid = await calculateJwkThumbprint({ kty: 'OKP', crv: 'Ed25519', x } as JWK)
    if (!kid.startsWith('-')) {
      return { publicJwk: { kty: 'OKP', crv: 'Ed25519', x: x!, kid, use: 'sig', alg: 'EdDSA' }, privateKey }
    }
  }
}

type NewKey = { generation: number; createdAt: number; activeFrom: number }

const insertKey = async (sql: Sql, sealer: Sealer, { generation, createdAt, activeFrom }: NewKey): Promise<void> => {
  const { publicJwk, privateKey } = await newKeyPair()
  const { kid } = publicJwk
  const pem = privateKey.export({ format: 'pem', type: 'pkcs8' }).toString()
  try {
    await run(
      sql,
      'INSERT INTO signing_keys (kid, generation, public_jwk, private_key_sealed, created_at, active_from) ' +
        'VALUES (?, ?, ?, ?, ?, ?)',
      [kid, generation, JSON.stringify(publicJwk), sealer.seal(pem, sealContext(kid)), createdAt, activeFrom],
    )
  } catch (error) {
    // Another process created this generation first; its key is used.
    if (!isDuplicate(error)) throw error
  }
}
