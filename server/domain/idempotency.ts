import { createHash, randomUUID } from 'node:crypto'
import pRetry from 'p-retry'
import { badInput, TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import { isContention, isDuplicate, isOutage, marks, rows, run, type Sql } from '../database/connect.ts'
import type { Sealer } from '../keys/seal.ts'

// A mutation that is sent again under its Idempotency-Key is done once. Who works on it holds the key by a lease. Each
// change notes in its own transaction what its field has come to, and only while the lease is still its own: that
// condition, not the time, is what keeps a change from being made twice. Sent again after a crash, a field that was
// done is not done again, and answers from what was noted; in the end the answer itself is kept.

/** How long a key is kept from its first use. */
export const KEPT_MS = 24 * 3600 * 1000
/** What a process held that died is free for others after so long. */
export const LEASE_MS = 8_000
const RENEW_MS = 2_500

/** What is written about a key, by a database that may be about to come back, is waited for so long at most. */
const PATIENCE_MS = 2_000
const TRIES = 6

/** What was answered. */
export type Answer = { status: number; contentType: string; body: string }

/** An answer beyond this is not kept: sent again, it is made anew from what its fields have come to. */
const ANSWER_CHARACTERS = 4 * 1024 * 1024

type Outcomes = Record<string, unknown>

type KeyRow = {
  request_hash: string
  leased_until: number
  version: number
  outcomes_sealed: string | null
  answer_sealed: string | null
  expires_at: number
}

type Tools = { sql: Sql; sealer: Sealer; clock: Clock }

/** A key that this request works on. */
export class Claim {
  readonly owner = randomUUID()
  readonly #tools: Tools
  readonly #place: [accessTokenId: string, keyHash: string]
  #outcomes: Outcomes = {}
  #version = 0
  #field = ''
  #renewal: NodeJS.Timeout | undefined

  constructor(tools: Tools, accessTokenId: string, keyHash: string) {
    this.#tools = tools
    this.#place = [accessTokenId, keyHash]
  }

  /** Takes over what has been done under the key so far. */
  begin(version: number, outcomesSealed: string | null): this {
    this.#version = version
    if (outcomesSealed !== null) this.#outcomes = JSON.parse(this.#open('outcomes', outcomesSealed))
    this.#renewal = setInterval(() => this.#renew().catch(() => {}), RENEW_MS).unref()
    return this
  }

  /** What a field of the mutation came to when the request was made before; undefined if it was not done. */
  enter(field: string): unknown {
    this.#field = field
    return this.#outcomes[field]
  }

  /**
   * Notes what the present field has come to, in the transaction that does it; nothing, if that is undefined. Throws
   * CONFLICT if another request works under the key by now.
   */
  async note(trx: Sql, outcome: unknown): Promise<void> {
    if (outcome === undefined) return
    const outcomes = this.#seal('outcomes', { ...this.#outcomes, [this.#field]: outcome })
    // The version too: what seemed to fail at its commit, and was done, is not done again.
    const noted = await this.#update(trx, 'outcomes_sealed = ?, version = version + 1', [outcomes], this.#version)
    if (noted === 0) throw running()
  }

  /** What `note` was given is committed. */
  noted(outcome: unknown): void {
    if (outcome === undefined) return
    // As it will be read, if it is.
    this.#outcomes = JSON.parse(JSON.stringify({ ...this.#outcomes, [this.#field]: outcome }))
    this.#version += 1
  }

  /** Keeps what is answered. Whether that can be written or not, it is an answer. */
  finish(answer: Answer): Promise<void> {
    if (answer.body.length > ANSWER_CHARACTERS) return this.release()
    const sealed = this.#seal('answer', answer)
    return this.#end('answer_sealed = ?, owner = NULL, leased_until = 0', [sealed])
  }

  /** Lets the request be made again, and go on from what was done. */
  release(): Promise<void> {
    return this.#end('owner = NULL, leased_until = 0')
  }

  async #end(assignments: string, values: string[] = []): Promise<void> {
    clearInterval(this.#renewal)
    const written = pRetry(() => this.#update(this.#tools.sql, assignments, values), {
      retries: TRIES - 1,
      minTimeout: 50,
      shouldRetry: ({ error }) => isOutage(error) || isContention(error),
      // What cannot be written down ends with the lease.
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

const running = (): TidingsError<'CONFLICT'> =>
  new TidingsError('CONFLICT', 'A request with this Idempotency-Key is being worked on. Send this one again soon.', {
    retryAfterSeconds: 1,
  })

const MOST_ROUNDS = 5

/**
 * Claims a key for a request, or finds what the request was answered. Throws CONFLICT while another works on it, and
 * BAD_USER_INPUT if it was another request.
 */
export const claimKey = async (
  tools: Tools,
  { accessTokenId, key, body }: { accessTokenId: string; key: string; body: Buffer },
): Promise<Claim | Answer> => {
  const { sql, sealer, clock } = tools
  const place: [string, string] = [accessTokenId, hashOf(key)]
  const requestHash = hashOf(body)
  const claim = new Claim(tools, ...place)
  const write = async (statement: string, bindings: (string | number)[]): Promise<number> => {
    try {
      return await run(sql, statement, bindings)
    } catch (error) {
      // It may have been written all the same.
      if (!isDuplicate(error)) await claim.release()
      throw error
    }
  }
  for (let round = 0; round < MOST_ROUNDS; round++) {
    const [found] = await rows<KeyRow>(
      sql,
      `SELECT request_hash, leased_until, version, outcomes_sealed, answer_sealed, expires_at
       FROM idempotency_keys WHERE access_token_id = ? AND key_hash = ?`,
      place,
    )
    const now = clock.now()
    if (!found) {
      try {
        await write(
          `INSERT INTO idempotency_keys (access_token_id, key_hash, request_hash, owner, leased_until, expires_at)
           VALUES (?, ?, ?, ?, ?, ?)`,
          [...place, requestHash, claim.owner, now + LEASE_MS, now + KEPT_MS],
        )
        return claim.begin(0, null)
      } catch (error) {
        if (!isDuplicate(error)) throw error
      }
    } else if (found.expires_at <= now) {
      await run(sql, 'DELETE FROM idempotency_keys WHERE access_token_id = ? AND key_hash = ? AND expires_at = ?', [
        ...place,
        found.expires_at,
      ])
    } else if (found.request_hash !== requestHash) {
      throw otherRequest()
    } else if (found.answer_sealed !== null) {
      return JSON.parse(sealer.open(found.answer_sealed, sealContext('answer', place)))
    } else if (found.leased_until > now) {
      throw running()
    } else {
      const taken = await write(
        `UPDATE idempotency_keys SET owner = ?, leased_until = ?, version = version + 1
         WHERE access_token_id = ? AND key_hash = ? AND version = ? AND leased_until = ? AND answer_sealed IS NULL`,
        [claim.owner, now + LEASE_MS, ...place, found.version, found.leased_until],
      )
      if (taken > 0) return claim.begin(found.version + 1, found.outcomes_sealed)
    }
  }
  throw running()
}

const hashOf = (text: string | Buffer): string => createHash('sha256').update(text).digest('base64')

const otherRequest = (): TidingsError<'BAD_USER_INPUT'> =>
  badInput(
    'Idempotency-Key',
    'has been used with another body; send the same body to have its answer, or take a new key',
  )

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
