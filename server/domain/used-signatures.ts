import { createHash } from 'node:crypto'
import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import { isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { CommitInDoubt, patiently, REQUEST_MS, unavailable } from '../database/patience.ts'
import { firstIdAt, newId } from '../ids.ts'
import type { Entry } from './audit.ts'

export const REPLAYED = {
  reason: 'replayed',
  message:
    'This signature has carried a mutation already. Sign each request anew, with an x-nonce if two are made in ' +
    'one second.',
} as const

/** Twice the clock window: for so long the same request would be let in again. */
const MARKED_MS = 10 * 60_000
/** An id's time may be that of a clock which was set right since. */
const CORRECTION_MS = 2_000

/** A signature that carries a mutation, from `at` on. It is marked in the row of the audit log with this id. */
export type Mark = {
  id: string
  signature: string
  at: number
  /** Processes of the version before run beside this one: it is marked where they look, too. */
  isTwice: boolean
}

export const newMark = (signature: string, at: number, isTwice: boolean): Mark => ({
  id: newId(at),
  signature,
  at,
  isTwice,
})

/**
 * Marks a signature as having carried a mutation; false if it had already, in whichever process.
 *
 * @param entry what the row says for the audit log, where it is known by now
 */
export const useSignature = async (sql: Sql, mark: Mark, entry?: Entry): Promise<boolean> => {
  const hash = hashOf(mark.signature)
  try {
    await run(
      sql,
      `INSERT INTO audit_log (id, created_at, signature_hash, access_token_id, operation, arguments, request_id)
       VALUES (?, ?, ?, ?, ?, ?, ?)`,
      [
        ...[mark.id, mark.at, hash, entry?.accessTokenId ?? null],
        ...[entry?.operation ?? '', entry?.arguments ?? '{}', entry?.requestId ?? null],
      ],
    )
    if (mark.isTwice) {
      await run(sql, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, ?)', [
        hash,
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
 * As `useSignature`, tried again while the database cannot be had, until `giveUpAt`. Where a try may have marked it
 * without being told so, nobody knows whose mark it is: then it throws UNAVAILABLE.
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

/** A request whose mutations have come to their end is not kept waiting for longer, to have its signature marked. */
const LATE_MS = 500

/**
 * The signature of a request with mutations. It is marked in the first transaction of theirs, so that neither is ever
 * there without the other; where none was committed, apart from them.
 */
export class CarryingSignature {
  readonly mark: Mark
  #isMarked = false
  #isReplayed = false
  /** A transaction was to mark it: where it is marked and nobody was told so, it may be by that one. */
  #isTried = false

  constructor(mark: Mark) {
    this.mark = mark
  }

  get isMarked(): boolean {
    return this.#isMarked
  }

  /**
   * Does `work` in a transaction that `transact` makes, marking the signature before. What `work` refuses by a rule,
   * having written nothing, is committed with the mark, and thrown then: nobody can slip in between. Throws REPLAYED if
   * another request has marked it, and CommitInDoubt where it cannot be found out in time whether the mark is there.
   *
   * @param entry what is written in the audit log with the mark, unless it is refused
   */
  async carry<T>(
    transact: <R>(work: (trx: Knex.Transaction) => Promise<R>) => Promise<R>,
    work: (trx: Knex.Transaction) => Promise<T>,
    entry?: Entry,
  ): Promise<T> {
    if (this.#isReplayed) throw replayed()
    if (this.#isMarked) return transact(work)
    this.#isTried = true
    const { result, refusal } = await this.#markAnd(transact, work, entry)
    this.#isMarked = true
    if (refusal) throw refusal
    return result as T
  }

  async #markAnd<T>(
    transact: <R>(work: (trx: Knex.Transaction) => Promise<R>) => Promise<R>,
    work: (trx: Knex.Transaction) => Promise<T>,
    entry: Entry | undefined,
  ): Promise<Ended<T>> {
    const giveUpAt = performance.now() + REQUEST_MS
    /** What was being committed when the connection broke: the mark says whether it was. */
    const doubt: { latest?: Ended<T>; error?: CommitInDoubt | undefined } = {}
    for (;;) {
      try {
        return await transact(async trx => {
          if (await useSignature(trx, this.mark, entry)) {
            doubt.error = undefined
            doubt.latest = await endOf(trx, work)
            if (doubt.latest.refusal && entry) await blank(trx, this.mark)
            return doubt.latest
          }
          if (doubt.error && (await isMarkedBy(trx, this.mark))) return doubt.latest!
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
    const mark = () => useSignature(sql, this.mark)
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

/** What was refused is no change: its row is the mark, and nothing else. */
const blank = async (trx: Sql, { id }: Mark): Promise<void> => {
  await run(trx, "UPDATE audit_log SET operation = '' WHERE id = ?", [id])
}

const isMarkedBy = async (sql: Sql, { id }: Mark): Promise<boolean> =>
  (await rows(sql, 'SELECT 1 FROM audit_log WHERE id = ?', [id])).length > 0

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

/**
 * Forgets up to `limit` signatures that the clock window keeps out by now, and returns how many there were: what was
 * changed with them stays in the audit log.
 */
export const forgetSignatures = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const index = dialectOf(sql).useIndex('audit_log_by_signature')
  const found = await rows<{ id: string; operation: string }>(
    sql,
    `SELECT id, operation FROM audit_log ${index} WHERE signature_hash IS NOT NULL AND id < ? LIMIT ?`,
    [firstIdAt(now - MARKED_MS - CORRECTION_MS), limit],
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

/** Deletes up to `limit` marks that the version before this one has made, once they have expired. */
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
