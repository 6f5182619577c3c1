import { createHash } from 'node:crypto'
import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import { isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { CommitInDoubt, patiently, REQUEST_MS, unavailable } from '../database/patience.ts'

export const REPLAYED = {
  reason: 'replayed',
  message:
    'This signature has carried a mutation already. Sign each request anew, with an x-nonce if two are made in ' +
    'one second.',
} as const

/** Marks a signature as having carried a mutation, until `expiresAt`; false if it had already, in whichever process. */
export const useSignature = async (sql: Sql, signature: string, expiresAt: number): Promise<boolean> => {
  try {
    await run(sql, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, ?)', [
      hashOf(signature),
      expiresAt,
    ])
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

/**
 * As `useSignature`, tried again while the database cannot be had, until `giveUpAt`. Where a try may have marked it
 * without being told so, nobody knows whose mark it is: then it throws UNAVAILABLE.
 */
export const useSignatureOnce = async (
  sql: Sql,
  { signature, expiresAt, giveUpAt }: { signature: string; expiresAt: number; giveUpAt: number },
): Promise<boolean> => {
  let tries = 0
  return patiently(async () => {
    tries += 1
    const isFirst = await useSignature(sql, signature, expiresAt)
    if (!isFirst && tries > 1) throw unavailable()
    return isFirst
  }, giveUpAt)
}

/** A request whose mutations have come to their end is not kept waiting for longer, to have its signature marked. */
const LATE_MS = 500

/**
 * The signature of a request with mutations. It is marked in the first transaction of theirs, so that neither is ever
 * there without the other; where none was committed, apart from them.
 */
export class CarryingSignature {
  readonly #signature: string
  readonly #expiresAt: number
  #isMarked = false
  #isReplayed = false
  /** A transaction was to mark it: where it is marked and nobody was told so, it may be by that one. */
  #isTried = false

  constructor(signature: string, expiresAt: number) {
    this.#signature = signature
    this.#expiresAt = expiresAt
  }

  /**
   * Does `work` in a transaction that `transact` makes, marking the signature before. What `work` refuses by a rule,
   * having written nothing, is committed with the mark, and thrown then: nobody can slip in between. Throws REPLAYED if
   * another request has marked it, and CommitInDoubt where it cannot be found out in time whether the mark is there.
   */
  async carry<T>(
    transact: <R>(work: (trx: Knex.Transaction) => Promise<R>) => Promise<R>,
    work: (trx: Knex.Transaction) => Promise<T>,
  ): Promise<T> {
    if (this.#isReplayed) throw replayed()
    if (this.#isMarked) return transact(work)
    this.#isTried = true
    const { result, refusal } = await this.#mark(transact, work)
    this.#isMarked = true
    if (refusal) throw refusal
    return result as T
  }

  async #mark<T>(
    transact: <R>(work: (trx: Knex.Transaction) => Promise<R>) => Promise<R>,
    work: (trx: Knex.Transaction) => Promise<T>,
  ): Promise<Ended<T>> {
    const giveUpAt = performance.now() + REQUEST_MS
    /** What was being committed when the connection broke: the mark says whether it was. */
    const doubt: { latest?: Ended<T>; error?: CommitInDoubt | undefined } = {}
    for (;;) {
      try {
        return await transact(async trx => {
          if (await useSignature(trx, this.#signature, this.#expiresAt)) {
            doubt.error = undefined
            doubt.latest = await endOf(trx, work)
            return doubt.latest
          }
          if (doubt.error && (await isMarkedUntil(trx, this.#signature, this.#expiresAt))) return doubt.latest!
          this.#isReplayed = true
          throw replayed()
        })
      } catch (error) {
        if (error instanceof CommitInDoubt) doubt.error = error
        else if (!doubt.error || this.#isReplayed) throw error
        if (performance.now() > giveUpAt) throw doubt.error
      }
    }
  }

  /** Marks what has not been marked yet, as far as the database can be had; false if another request has. */
  async end(sql: Sql): Promise<boolean> {
    if (this.#isReplayed || this.#isMarked) return !this.#isReplayed
    const mark = () => useSignature(sql, this.#signature, this.#expiresAt)
    const isFirst = await patiently(mark, performance.now() + LATE_MS).catch(error => {
      if (!(error instanceof TidingsError)) throw error
      return true
    })
    return isFirst || this.#isTried
  }
}

/** What a transaction has come to. */
type Ended<T> = { result?: T; refusal?: TidingsError }

const endOf = async <T>(trx: Knex.Transaction, work: (trx: Knex.Transaction) => Promise<T>): Promise<Ended<T>> => {
  const hasWritten = watchWrites(trx)
  try {
    return { result: await work(trx) }
  } catch (error) {
    if (!(error instanceof TidingsError) || hasWritten()) throw error
    return { refusal: error }
  }
}

/** Whether a signature is marked by the request that meant to mark it until then, to the millisecond. */
const isMarkedUntil = async (sql: Sql, signature: string, expiresAt: number): Promise<boolean> => {
  const marked = await rows(sql, 'SELECT 1 FROM used_signatures WHERE signature_hash = ? AND expires_at = ?', [
    hashOf(signature),
    expiresAt,
  ])
  return marked.length > 0
}

const hashOf = (signature: string): string => createHash('sha256').update(signature).digest('base64')

const replayed = (): TidingsError => new TidingsError('UNAUTHENTICATED', REPLAYED.message, { reason: REPLAYED.reason })

/** Whether anything was written in a transaction from here on. */
const watchWrites = (trx: Knex.Transaction): (() => boolean) => {
  let hasWritten = false
  trx.on('query', ({ sql }: { sql: string }) => {
    hasWritten ||= !/^\s*\(*SELECT/i.test(sql)
  })
  return () => hasWritten
}

/** Deletes up to `limit` signatures that have expired, and returns how many there were. */
export const deleteExpiredSignatures = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const expired = await rows<{ signature_hash: string }>(
    sql,
    'SELECT signature_hash FROM used_signatures WHERE expires_at < ? LIMIT ?',
    [now, limit],
  )
  if (expired.length === 0) return 0
  const hashes = expired.map(row => row.signature_hash)
  return run(sql, `DELETE FROM used_signatures WHERE signature_hash IN (${marks(hashes)})`, hashes)
}
