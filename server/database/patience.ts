import pRetry from 'p-retry'
import { TidingsError } from '../../shared/errors.ts'
import { type Database, isContention, isOutage } from './connect.ts'
import type { Transaction } from './transaction.ts'

// How long a request waits for the database: for a lock, a connection, or a server that comes back. After that it is
// UNAVAILABLE, and nothing was done.

export const REQUEST_MS = 10_000
export const RETRY_AFTER_S = 5

/** Whether an error says that the database or a row was not available in time: a retry may succeed. */
export const isPassing = (error: unknown): boolean => isOutage(error) || isContention(error)

export const unavailable = (error?: unknown): TidingsError<'UNAVAILABLE'> => {
  const what =
    error !== undefined && isContention(error)
      ? 'Data that this needs is locked by another operation'
      : 'The database cannot be reached, or cannot work at present'
  return new TidingsError('UNAVAILABLE', `${what}. Nothing was done. Try again in ${RETRY_AFTER_S} s.`, {
    retryAfterSeconds: RETRY_AFTER_S,
  })
}

/** The connection broke while a transaction was being committed. */
export class CommitInDoubt extends Error {
  constructor(cause: unknown) {
    super('The connection to the database broke while a transaction was being committed', { cause })
    this.name = 'CommitInDoubt'
  }
}

/**
 * The result of `work`, which is repeated while the database is unavailable, until `giveUpAt` (by `performance.now()`).
 * Then throws UNAVAILABLE. `work` must be safe to repeat.
 */
export const patiently = async <T>(work: () => Promise<T>, giveUpAt: number): Promise<T> => {
  try {
    return await inTime(again(work, giveUpAt), giveUpAt)
  } catch (error) {
    throw isPassing(error) ? unavailable(error) : error
  }
}

const again = <T>(work: () => Promise<T>, giveUpAt: number): Promise<T> =>
  pRetry(work, {
    retries: Number.POSITIVE_INFINITY,
    minTimeout: 20,
    maxTimeout: 1_000,
    randomize: true,
    maxRetryTime: Math.max(0, giveUpAt - performance.now()),
    shouldRetry: ({ error }) => isPassing(error),
  })

const inTime = async <T>(work: Promise<T>, giveUpAt: number): Promise<T> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(unavailable()), Math.max(0, giveUpAt - performance.now()))
  })
  // When it ends, nobody may be waiting for it.
  work.catch(() => {})
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

/**
 * Runs `work` in a transaction that commits within a request's time or never; then it throws UNAVAILABLE. Throws
 * CommitInDoubt if the outcome of the commit is unknown.
 *
 * @param options.isOnce whether to fail at the first conflict or outage, instead of trying again
 */
export const transactInTime = async <T>(
  database: Database,
  work: (trx: Transaction) => Promise<T>,
  { forMs = REQUEST_MS, isOnce = false }: { forMs?: number; isOnce?: boolean } = {},
): Promise<T> => {
  let isCommitting = false
  let isGivenUp = false
  const options = isOnce ? { againForMs: 0 } : {}
  const transact = async (): Promise<T> => {
    isCommitting = false
    try {
      return await database.transaction(async trx => {
        isCommitting = false
        const result = await work(trx)
        if (isGivenUp) throw unavailable()
        isCommitting = true
        return result
      }, options)
    } catch (error) {
      // An embedded engine has no connection that could break: it says whether it has committed.
      const isInDoubt = isCommitting && isOutage(error) && !database.dialect.isEmbedded
      throw isInDoubt ? new CommitInDoubt(error) : error
    }
  }
  const giveUpAt = performance.now() + forMs
  const done = isOnce ? transact() : again(transact, giveUpAt)
  try {
    return await inTime(done, giveUpAt).catch(error => {
      isGivenUp = true
      // A commit that is under way may succeed: wait for its result.
      if (isCommitting) return done
      throw error
    })
  } catch (error) {
    throw isPassing(error) ? unavailable(error) : error
  }
}
