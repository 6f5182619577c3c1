import { toText } from '../shared/bytes.ts'
import type { Jwk } from '../shared/delivery-token.ts'
import { keyBytes } from '../shared/ed25519.ts'
import { codeOf } from '../shared/errors.ts'
import { isObject } from '../shared/token-format.ts'

/**
 * Returns the public keys that a token may be checked with; called for each token with its `kid`. Rejects if the keys
 * are unavailable. `waitUntil` keeps a runtime alive for work after the answer.
 */
export type KeySource = (kid: string | undefined, context?: KeyContext) => readonly Jwk[] | Promise<readonly Jwk[]>

export interface KeyContext {
  waitUntil?: ((promise: Promise<unknown>) => void) | undefined
}

/** A source that fetches its keys. */
export type RemoteKeys = (kid: string | undefined, context?: KeyContext) => Promise<readonly Jwk[]>

/** The age at which keys are fetched again in the background, while they still serve. */
const REFRESH_AFTER_MS = 240_000
/**
 * The age from which a fetch is waited for: Tidings lets keys be cached for 300 s, and a revoked key counts no longer
 * after that. Only if the fetch fails do older keys serve.
 */
const FRESH_MS = 300_000
/** How long known keys serve while the issuer does not answer. The limit ends the use of a withdrawn key. */
const STALE_MS = 3_600_000
/**
 * The least time between two fetches for unknown `kid`s, so that untrusted senders cannot cause a request with every
 * token, and the pause after a failed fetch.
 */
const LEAST_BETWEEN_MS = 10_000
/** The time limit of a fetch, to the last byte; far less than Tidings waits for an answer to its delivery. */
const TIMEOUT_MS = 5_000
/** The longest key set that is read: some 1,500 keys. */
const MAX_BYTES = 256 * 1024

/** The URL at which an issuer publishes its keys. */
export const jwksUrl = (issuer: string): string => `${issuer.replace(/\/$/, '')}/.well-known/jwks.json`

/**
 * What says how many milliseconds ago it was made. The longer of two clocks counts: the machine's may be set back, and
 * the monotonic one may stand still while the machine sleeps.
 */
const stopwatch = (): (() => number) => {
  const atMs = Date.now()
  const runsMs = performance.now()
  return () => Math.max(Date.now() - atMs, performance.now() - runsMs)
}

/**
 * A source of the keys of the JSON Web Key Set at a URL. It fetches them when they are first needed, again before they
 * expire, and when a token names an unknown key. At most one request is under way, however many tokens come. A token
 * whose key is known waits for one only when the keys are older than 300 s. A set that is empty or unreadable changes
 * nothing. Rejects with an Error that names the URL and the reason.
 */
export const remoteKeys = (url: string): RemoteKeys => {
  let keys: readonly Jwk[] = []
  let ageMs = (): number => Number.POSITIVE_INFINITY
  let failure: { error: Error; ageMs: () => number } | undefined
  let underWay: { promise: Promise<void>; ageMs: () => number } | undefined

  const fetchKeys = async (): Promise<void> => {
    const sinceStartMs = stopwatch()
    try {
      keys = await readKeySet(url)
      ageMs = sinceStartMs
      failure = undefined
    } catch (cause) {
      failure = { error: unavailable(url, cause), ageMs: stopwatch() }
      throw failure.error
    }
  }

  /**
   * The fetch that is under way, or a new one. One that should have ended long ago died with the request that it was
   * made for.
   */
  const refresh = (): Promise<void> => {
    if (underWay && underWay.ageMs() < 2 * TIMEOUT_MS) return underWay.promise
    if (failure && failure.ageMs() < LEAST_BETWEEN_MS) return Promise.reject(failure.error)
    const promise = fetchKeys().finally(() => {
      if (underWay?.promise === promise) underWay = undefined
    })
    promise.catch(() => {})
    underWay = { promise, ageMs: stopwatch() }
    return promise
  }

  return async (kid, context = {}) => {
    const isMissing = kid !== undefined && !keys.some(key => key.kid === kid)
    const age = ageMs()
    if (isMissing ? age < LEAST_BETWEEN_MS : age < REFRESH_AFTER_MS) return keys
    const refreshing = refresh()
    if (!isMissing && age < FRESH_MS) {
      const inBackground = refreshing.catch(() => {})
      context.waitUntil?.(inBackground)
      return keys
    }
    try {
      await within(TIMEOUT_MS, refreshing, () => unavailable(url, new Error('no answer in time')))
    } catch (error) {
      if (isMissing || age > STALE_MS) throw error
    }
    return keys
  }
}

/** Limits the wait for a promise of another request, which never settles if the runtime has ended that request. */
const within = async (ms: number, promise: Promise<void>, error: () => Error): Promise<void> => {
  let timer: ReturnType<typeof setTimeout> | undefined
  const tooLate = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(error()), ms + 250)
  })
  await Promise.race([promise, tooLate]).finally(() => clearTimeout(timer))
}

/** Fetches the keys at a URL. Rejects with an Error that says what is wrong with the answer. */
const readKeySet = async (url: string): Promise<readonly Jwk[]> => {
  const stopping = new AbortController()
  const timer = setTimeout(() => stopping.abort(new Error(`no whole answer within ${TIMEOUT_MS / 1000} s`)), TIMEOUT_MS)
  try {
    const response = await fetch(url, {
      headers: { accept: 'application/json' },
      redirect: 'manual',
      signal: stopping.signal,
    })
    if (response.status !== 200) {
      response.body?.cancel().catch(() => {})
      throw new Error(`answered ${response.status || 'with a redirect'}, not 200`)
    }
    return usableKeys(JSON.parse(toText(await readWithin(MAX_BYTES, response))))
  } catch (error) {
    throw stopping.signal.aborted ? stopping.signal.reason : error
  } finally {
    clearTimeout(timer)
  }
}

const readWithin = async (limit: number, response: Response): Promise<Uint8Array> => {
  const reader = response.body?.getReader()
  const parts: Uint8Array[] = []
  let length = 0
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    length += part.value.length
    parts.push(part.value)
    if (length <= limit) continue
    reader?.cancel().catch(() => {})
    throw new Error(`longer than ${limit / 1024} KiB`)
  }
  const bytes = new Uint8Array(length)
  let at = 0
  for (const part of parts) {
    bytes.set(part, at)
    at += part.length
  }
  return bytes
}

/** The keys of a set that can verify delivery tokens. Throws an Error if there is none. */
const usableKeys = (set: unknown): readonly Jwk[] => {
  const keys = isObject(set) ? keysIn(set) : undefined
  if (keys === undefined) throw new Error('no JSON Web Key Set')
  // Keys of other kinds stay, so that a token that names one gets an exact error.
  const usable = keys.filter(key => key.crv !== 'Ed25519' || isUsable(key))
  if (!usable.some(isUsable)) throw new Error('no Ed25519 key in it')
  return usable
}

/** The keys of a set or a list; undefined if the value is neither. */
export const keysIn = (value: unknown): readonly Jwk[] | undefined => {
  const keys = isObject(value) ? value.keys : value
  return Array.isArray(keys) ? keys.filter(isObject) : undefined
}

/** Whether this is an Ed25519 public key (RFC 8037) with a `kid`. */
export const isUsable = ({ kty, crv, x, kid }: Jwk): boolean =>
  kty === 'OKP' && crv === 'Ed25519' && typeof kid === 'string' && keyBytes(x) !== undefined

const unavailable = (url: string, cause: unknown): Error => {
  const { cause: deeper = cause } = (cause ?? {}) as { cause?: unknown }
  const why = deeper instanceof Error ? deeper.message || String(codeOf(deeper)) : String(deeper)
  return new Error(`The issuer’s keys at ${url} could not be had: ${why}.`, { cause })
}
