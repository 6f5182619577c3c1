import { createHash, randomUUID } from 'node:crypto'
import pRetry from 'p-retry'
import { badInput, TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import { type Database, isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { isPassing, patiently } from '../database/patience.ts'
import type { Sealer } from '../keys/seal.ts'

// A mutation that is repeated under its Idempotency-Key is done once. The request that works on it holds the key by a
// lease. Each change records the result of its field in its own transaction, and only under the request's own lease:
// that condition, not the time, prevents a change from being made twice. After a crash, a repeated request does not
// redo finished fields, and answers from their recorded results. Finally the answer itself is kept.

/** How long a key is kept from its first use. */
export const KEPT_MS = 24 * 3600 * 1000
/** The length of the lease: the keys of a dead process are free after it. */
export const LEASE_MS = 8_000
const RENEW_MS = 2_500

/** How long a write about a key waits for a database that may come back. */
const PATIENCE_MS = 2_000
const TRIES = 6

/** What was answered. */
export type Answer = { status: number; contentType: string; body: string }

/** A longer answer is not kept: a repeated request builds it anew from the results of its fields. */
const ANSWER_CHARACTERS = 4 * 1024 * 1024

type Outcomes = Record<string, unknown>

/** What was done under a key so far. */
type Begun = { version: number; outcomes_sealed: string | null }
type KeyRow = Begun & {
  request_hash: string
  owner: string | null
  leased_until: number
  answer_sealed: string | null
  expires_at: number
}

type Place = [accessTokenId: string, keyHash: string]
type Tools = { sql: Sql; sealer: Sealer; clock: Clock }

/** A key that this request works on. */
export class Claim {
  readonly owner = randomUUID()
  readonly #tools: Tools
  readonly #place: Place
  #outcomes: Outcomes = {}
  #version = 0
  #field = ''
  #renewal: NodeJS.Timeout | undefined

  constructor(tools: Tools, place: Place) {
    this.#tools = tools
    this.#place = place
  }

  /** Continues from what has been done under the key, and keeps it until it is finished or released. */
  begin(begun: Begun): this {
    this.#recall(begun)
    this.#renewal = setInterval(() => this.#renew().catch(() => {}), RENEW_MS).unref()
    return this
  }

  /** The result of a field from an earlier request; undefined if it was not done. */
  enter(field: string): unknown {
    this.#field = field
    return this.#outcomes[field]
  }

  /**
   * Records the result of the present field in the transaction that makes the change; does nothing for undefined.
   * Throws CONFLICT if another request has taken the key over.
   */
  async note(trx: Sql, outcome: unknown): Promise<void> {
    if (outcome === undefined) return
    const outcomes = this.#seal('outcomes', { ...this.#outcomes, [this.#field]: outcome })
    // The version is part of the condition, so that a change whose commit seemed to fail is not repeated if it
    // succeeded.
    const noted = await this.#update(trx, 'outcomes_sealed = ?, version = version + 1', [outcomes], this.#version)
    if (noted === 0) throw running()
  }

  /** The result given to `note` is committed. */
  noted(outcome: unknown): void {
    if (outcome === undefined) return
    // In the form in which it would be read again.
    this.#outcomes = JSON.parse(JSON.stringify({ ...this.#outcomes, [this.#field]: outcome }))
    this.#version += 1
  }

  /** The result of the present field after a commit in doubt; undefined if the transaction was not committed. */
  async lookAgain(database: Database): Promise<unknown> {
    // Waits for the lock, which the other transaction releases when it ends.
    const found = await database.transaction(trx =>
      rows<Begun>(
        trx,
        `SELECT version, outcomes_sealed FROM idempotency_keys
         WHERE access_token_id = ? AND key_hash = ? AND owner = ?${database.dialect.forUpdate}`,
        [...this.#place, this.owner],
      ),
    )
    const [begun] = found
    if (!begun || begun.version === this.#version) return undefined
    this.#recall(begun)
    return this.#outcomes[this.#field]
  }

  #recall({ version, outcomes_sealed }: Begun): void {
    this.#version = version
    if (outcomes_sealed !== null) this.#outcomes = JSON.parse(this.#open('outcomes', outcomes_sealed))
  }

  /** Stores the answer. The answer is sent whether or not it can be stored. */
  finish(answer: Answer): Promise<void> {
    if (answer.body.length > ANSWER_CHARACTERS) return this.release()
    const sealed = this.#seal('answer', answer)
    return this.#end('answer_sealed = ?, owner = NULL, leased_until = 0', [sealed])
  }

  /** Releases the key, so that a repeated request continues from what was done. */
  release(): Promise<void> {
    return this.#end('owner = NULL, leased_until = 0')
  }

  async #end(assignments: string, values: string[] = []): Promise<void> {
    clearInterval(this.#renewal)
    const written = pRetry(() => this.#update(this.#tools.sql, assignments, values), {
      retries: TRIES - 1,
      minTimeout: 50,
      shouldRetry: ({ error }) => isPassing(error),
      // If the release cannot be written, the lease ends by itself.
    }).catch(() => {})
    const { promise: late, resolve } = Promise.withResolvers<void>()
    const timer = setTimeout(resolve, PATIENCE_MS)
    await Promise.race([written, late])
    clearTimeout(timer)
  }

  async #renew(): Promise<void> {
    const until = this.#tools.clock.now() + LEASE_MS
    await this.#update(this.#tools.sql, 'leased_until = ?', [until])
  }

  #update(sql: Sql, assignments: string, values: (string | number)[], version?: number): Promise<number> {
    const condition = version === undefined ? '' : ' AND version = ?'
    return run(
      sql,
      `UPDATE idempotency_keys SET ${assignments} WHERE access_token_id = ? AND key_hash = ? AND owner = ?${condition}`,
      [...values, ...this.#place, this.owner, ...(version === undefined ? [] : [version])],
    )
  }

  #seal(what: string, value: unknown): string {
    return this.#tools.sealer.seal(JSON.stringify(value), sealContext(what, this.#place))
  }
  #open(what: string, sealed: string): string {
    return this.#tools.sealer.open(sealed, sealContext(what, this.#place))
  }
}

const sealContext = (what: string, place: readonly string[]): string => `${what} of idempotency key ${place.join(' ')}`

/** The sealing context of the two. */
export const outcomesSealContext = (...place: string[]): string => sealContext('outcomes', place)
export const answerSealContext = (...place: string[]): string => sealContext('answer', place)

const running = (): TidingsError<'CONFLICT'> =>
  new TidingsError('CONFLICT', 'A request with this Idempotency-Key is in progress. Send this one again soon.', {
    retryAfterSeconds: 1,
  })

/**
 * Claims a key for a request, or finds the stored answer. Retries until `giveUpAt` while the database is unavailable,
 * then throws UNAVAILABLE. Throws CONFLICT while another request works on the key, BAD_USER_INPUT if the key belongs to
 * another request.
 */
export const claimKey = async (
  tools: Tools,
  { accessTokenId, key, body, giveUpAt }: { accessTokenId: string; key: string; body: Buffer; giveUpAt: number },
): Promise<Claim | Answer> => {
  const place: Place = [accessTokenId, hashOf(key)]
  const claim = new Claim(tools, place)
  try {
    const found = await patiently(() => take(tools, place, { owner: claim.owner, requestHash: hashOf(body) }), giveUpAt)
    return 'status' in found ? found : claim.begin(found)
  } catch (error) {
    // The key may be taken although the insert failed.
    if (error instanceof TidingsError && error.code === 'UNAVAILABLE') await claim.release()
    throw error
  }
}

const MOST_ROUNDS = 5

/** Takes a key for `owner`, who may already have taken it without knowing. */
const take = async (
  { sql, sealer, clock }: Tools,
  place: Place,
  { owner, requestHash }: { owner: string; requestHash: string },
): Promise<Begun | Answer> => {
  for (let round = 0; round < MOST_ROUNDS; round++) {
    const [found] = await rows<KeyRow>(
      sql,
      `SELECT request_hash, owner, leased_until, version, outcomes_sealed, answer_sealed, expires_at
       FROM idempotency_keys WHERE access_token_id = ? AND key_hash = ?`,
      place,
    )
    const now = clock.now()
    if (!found) {
      if (await insert(sql, place, { owner, requestHash, now })) return { version: 0, outcomes_sealed: null }
    } else if (found.expires_at <= now) {
      await run(sql, 'DELETE FROM idempotency_keys WHERE access_token_id = ? AND key_hash = ? AND expires_at = ?', [
        ...place,
        found.expires_at,
      ])
    } else if (found.request_hash !== requestHash) {
      throw otherRequest()
    } else if (found.answer_sealed !== null) {
      return JSON.parse(sealer.open(found.answer_sealed, sealContext('answer', place)))
    } else if (found.owner === owner) {
      return found
    } else if (found.leased_until > now) {
      throw running()
    } else {
      const taken = await run(
        sql,
        `UPDATE idempotency_keys SET owner = ?, leased_until = ?, version = version + 1
         WHERE access_token_id = ? AND key_hash = ? AND version = ? AND leased_until = ? AND answer_sealed IS NULL`,
        [owner, now + LEASE_MS, ...place, found.version, found.leased_until],
      )
      if (taken > 0) return { ...found, version: found.version + 1 }
    }
  }
  throw running()
}

/** Whether the key was new. */
const insert = async (
  sql: Sql,
  place: Place,
  { owner, requestHash, now }: { owner: string; requestHash: string; now: number },
): Promise<boolean> => {
  try {
    await run(
      sql,
      `INSERT INTO idempotency_keys (access_token_id, key_hash, request_hash, owner, leased_until, expires_at)
       VALUES (?, ?, ?, ?, ?, ?)`,
      [...place, requestHash, owner, now + LEASE_MS, now + KEPT_MS],
    )
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

const hashOf = (text: string | Buffer): string => createHash('sha256').update(text).digest('base64')

const otherRequest = (): TidingsError<'BAD_USER_INPUT'> =>
  badInput('Idempotency-Key', 'was used with another body; send the same body to get its answer, or use a new key')

/** Whether a text can be a key: 1 to 255 printable ASCII characters. */
export const isKey = (text: string): boolean => /^[\x20-\x7e]{1,255}$/.test(text)

/** Deletes up to `limit` keys that have expired, and returns how many there were. */
export const deleteExpiredKeys = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const expired = await rows<{ key_hash: string }>(
    sql,
    'SELECT key_hash FROM idempotency_keys WHERE expires_at <= ? LIMIT ?',
    [now, limit],
  )
  if (expired.length === 0) return 0
  return run(sql, `DELETE FROM idempotency_keys WHERE expires_at <= ? AND key_hash IN (${marks(expired)})`, [
    now,
    ...expired.map(row => row.key_hash),
  ])
}
