import { createHash } from 'node:crypto'
import { TidingsError } from '../../shared/errors.ts'
import { isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { CommitInDoubt, patiently, REQUEST_MS, unavailable } from '../database/patience.ts'
import type { Transaction } from '../database/transaction.ts'
import { leastIdAt, newId } from '../ids.ts'
import type { Entry } from './audit.ts'
import type { Made } from './group-commit.ts'

export const REPLAYED = {
  reason: 'replayed',
  message:
    'This signature has carried a mutation already. Sign each request anew, with an x-nonce if two are made in ' +
    'one second.',
} as const

/** Twice the clock window, during which the same request would be accepted again. */
const MARKED_MS = 10 * 60_000
/** An id's time may come from a clock that was corrected since. */
const CORRECTION_MS = 2_000

/** A signature that carries a mutation, used at `at`. The row of the audit log with this id is its mark. */
export type Mark = {
  id: string
  signature: string
  at: number
  /** Processes of the previous version may run beside this one, so the signature is also marked where they look. */
  isTwice: boolean
}

export const newMark = (signature: string, at: number, isTwice: boolean): Mark => ({
  id: newId(at),
  signature,
  at,
  isTwice,
})

/**
 * Marks a signature as used by a mutation; false if any process has used it already.
 *
 * @param entry the content for the audit log, if it is known by now
 */
export const useSignature = async (sql: Sql, mark: Mark, entry?: Entry): Promise<boolean> => {
  try {
    await useSignatures(sql, [{ mark, entry }])
    if (mark.isTwice) {
      await run(sql, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, ?)', [
        hashOf(mark.signature),
        mark.at + MARKED_MS,
      ])
    }
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

/**
 * Marks the signatures of several mutations that share a transaction. Throws if another process has used one of them
 * since `usedOf`. They are written in the order of their ids: a row before the last one makes MySQL halve the page.
 */
export const useSignatures = async (sql: Sql, given: { mark: Mark; entry?: Entry | undefined }[]): Promise<void> => {
  const inOrder = given.toSorted((one, other) => (one.mark.id < other.mark.id ? -1 : 1))
  await run(
    sql,
    `INSERT INTO audit_log (id, created_at, signature_hash, access_token_id, operation, arguments, request_id)
     VALUES ${given.map(() => '(?, ?, ?, ?, ?, ?, ?)').join(', ')}`,
    inOrder.flatMap(({ mark, entry }) => [
      ...[mark.id, mark.at, hashOf(mark.signature), entry?.accessTokenId ?? null],
      ...[entry?.operation ?? '', entry?.arguments ?? '{}', entry?.requestId ?? null],
    ]),
  )
}

/** Which of these signatures are marked as used. */
export const usedOf = async (trx: Sql, signatures: string[]): Promise<Set<string>> => {
  const byHash = new Map(signatures.map(signature => [hashOf(signature), signature]))
  const found = await rows<{ signature_hash: string }>(
    trx,
    `SELECT signature_hash FROM audit_log ${dialectOf(trx).useIndex('audit_log_by_signature')}
     WHERE signature_hash IN (${marks(signatures)})`,
    [...byHash.keys()],
  )
  return new Set(found.map(row => byHash.get(row.signature_hash)!))
}

/**
 * As `useSignature`, repeated while the database is unavailable, until `giveUpAt`. If a failed try may have set the
 * mark, its owner is unknown: then throws UNAVAILABLE.
 */
export const useSignatureOnce = async (sql: Sql, mark: Mark, giveUpAt: number): Promise<boolean> => {
  let tries = 0
  return patiently(async () => {
    tries += 1
    const isFirst = await useSignature(sql, mark)
    if (!isFirst && tries > 1) throw unavailable()
    return isFirst
  }, giveUpAt)
}

/** Runs `work` in a transaction that commits in this time, by default a request's, or never. */
export type TransactWithin = <T>(work: (trx: Transaction) => Promise<T>, forMs?: number) => Promise<T>

/** The longest that a finished request waits for its signature to be marked. */
const LATE_MS = 500

/**
 * The signature of a request with mutations. The first transaction of the mutations marks it, so that both exist
 * together; if none commits, the mark is written by itself.
 */
export class CarryingSignature {
  readonly mark: Mark
  #isMarked = false
  #isReplayed = false
  /** A transaction that was to mark it, and whose result is unknown, may have set the mark that is found. */
  #isTried = false
  /** A mark by itself was tried: if it is found, it may be this request's. */
  #isBegun = false

  constructor(mark: Mark) {
    this.mark = mark
  }

  get isMarked(): boolean {
    return this.#isMarked
  }

  /**
   * Runs `work` in a transaction of `transact`, after marking the signature. If a rule of `work` refuses and nothing
   * was written, the mark is committed and the refusal thrown, so that no other request can use the signature in
   * between. Throws REPLAYED if another request has used it, CommitInDoubt if it cannot be determined in time whether
   * the mark exists.
   *
   * @param entry the audit log entry to write with the mark, unless the change is refused
   * @param makeTogether makes the change together with others and marks it; undefined if it has to be made alone
   */
  async carry<T>(
    transact: TransactWithin,
    work: (trx: Transaction) => Promise<T>,
    entry?: Entry,
    makeTogether?: (mark: Mark) => Promise<Made<T> | undefined>,
  ): Promise<T> {
    if (this.#isReplayed) throw replayed()
    if (this.#isMarked) return transact(work)
    this.#isTried = true
    const startedAt = performance.now()
    const made = await makeTogether?.(this.mark)
    const leftMs = REQUEST_MS - (performance.now() - startedAt)
    const isMade = made && !made.doubt
    const { result, refusal }: Ended<T> = isMade ? made : await this.#markAnd(transact, work, { entry, made, leftMs })
    this.#isMarked = true
    if (refusal) throw refusal
    return result as T
  }

  async #markAnd<T>(
    transact: TransactWithin,
    work: (trx: Transaction) => Promise<T>,
    { entry, made, leftMs }: { entry: Entry | undefined; made: Made<T> | undefined; leftMs: number },
  ): Promise<Ended<T>> {
    const giveUpAt = performance.now() + leftMs
    /** After a commit in doubt: the mark says whether it succeeded. */
    const doubt: { latest?: Ended<T>; error?: CommitInDoubt | undefined } = made
      ? { latest: made, error: made.doubt }
      : {}
    for (;;) {
      try {
        return await transact(async trx => {
          const isFirst = await useSignature(trx, this.mark, entry)
          if (isFirst || (this.#isBegun && !doubt.error && (await isMarkedBy(trx, this.mark)))) {
            doubt.error = undefined
            doubt.latest = await endOf(trx, work)
            if (doubt.latest.refusal && entry) await blank(trx, this.mark)
            return doubt.latest
          }
          if (doubt.error && (await isMarkedBy(trx, this.mark))) return doubt.latest!
          this.#isReplayed = true
          throw replayed()
        }, leftMs)
      } catch (error) {
        if (error instanceof CommitInDoubt) doubt.error = error
        else if (!doubt.error || this.#isReplayed) throw error
        if (performance.now() > giveUpAt) throw doubt.error
      }
    }
  }

  /** Marks the signature before any transaction. Throws REPLAYED if another request has used it. */
  async markNow(sql: Sql): Promise<void> {
    this.#isTried = true
    this.#isBegun = true
    this.#isReplayed = !(await useSignature(sql, this.mark))
    if (this.#isReplayed) throw replayed()
    this.#isMarked = true
  }

  /**
   * Marks the signature if that has not happened yet and the database is available; false if another request has used
   * it.
   */
  async end(sql: Sql): Promise<boolean> {
    if (this.#isReplayed || this.#isMarked) return !this.#isReplayed
    const mark = () => useSignature(sql, this.mark)
    const isFirst = await patiently(mark, performance.now() + LATE_MS).catch(error => {
      if (!(error instanceof TidingsError)) throw error
      return true
    })
    return isFirst || this.#isTried
  }
}

/** The result of a transaction. */
type Ended<T> = { result?: T; refusal?: TidingsError }

const endOf = async <T>(trx: Transaction, work: (trx: Transaction) => Promise<T>): Promise<Ended<T>> => {
  const writesBefore = trx.writes()
  try {
    return { result: await work(trx) }
  } catch (error) {
    if (!(error instanceof TidingsError) || trx.writes() > writesBefore) throw error
    return { refusal: error }
  }
}

/** A refused change has no audit entry: its row is only the mark. */
const blank = async (trx: Sql, { id }: Mark): Promise<void> => {
  await run(trx, "UPDATE audit_log SET operation = '' WHERE id = ?", [id])
}

const isMarkedBy = async (sql: Sql, { id }: Mark): Promise<boolean> =>
  (await rows(sql, 'SELECT 1 FROM audit_log WHERE id = ?', [id])).length > 0

const hashOf = (signature: string): string => createHash('sha256').update(signature).digest('base64')

const replayed = (): TidingsError => new TidingsError('UNAUTHENTICATED', REPLAYED.message, { reason: REPLAYED.reason })

/**
 * Deletes up to `limit` marks of signatures that the clock window refuses by now, and returns their number. Their
 * entries in the audit log stay.
 */
export const forgetSignatures = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const index = dialectOf(sql).useIndex('audit_log_by_signature')
  const found = await rows<{ id: string; operation: string }>(
    sql,
    `SELECT id, operation FROM audit_log ${index} WHERE signature_hash IS NOT NULL AND id < ? LIMIT ?`,
    [leastIdAt(now - MARKED_MS - CORRECTION_MS), limit],
  )
  const [changes, others] = [found.filter(row => row.operation !== ''), found.filter(row => row.operation === '')]
  for (const [some, statement] of [
    [changes, 'UPDATE audit_log SET signature_hash = NULL'],
    [others, 'DELETE FROM audit_log'],
  ] as const) {
    const ids = some.map(({ id }) => id)
    if (ids.length > 0) await run(sql, `${statement} WHERE id IN (${marks(ids)})`, ids)
  }
  return found.length
}

/** Deletes up to `limit` expired marks of the previous version. */
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
