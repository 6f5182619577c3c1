import { fromBase64url, isBase64url, toText } from '../shared/bytes.ts'
import type { Jwk } from '../shared/delivery-token.ts'
import { isObject } from '../shared/token-format.ts'

/**
 * The public keys that a token may be checked with; asked for each token, by its `kid`. Rejects when they cannot be
 * had. `waitUntil` keeps a runtime from ending what goes on after the answer.
 */
export type KeySource = (kid: string | undefined, context?: KeyContext) => readonly Jwk[] | Promise<readonly Jwk[]>

export interface KeyContext {
  waitUntil?: ((promise: Promise<unknown>) => void) | undefined
}

/** A source whose keys are somewhere else. */
export type RemoteKeys = (kid: string | undefined, context?: KeyContext) => Promise<readonly Jwk[]>

/** From then on keys are fetched again while they still serve: the service lets them be cached for 300 s. */
const REFRESH_AFTER_MS = 240_000
/**
 * Keys that are known serve for so long while the issuer does
 * not answer; a key that was withdrawn must not serve for ever.
 */
const STALE_MS = 3_600_000
/** An unknown `kid` may mean new keys, but untrusted senders must not be able to cause a request with each token. */
const LEAST_BETWEEN_MS = 10_000
/** After a request for the keys that failed, none is made for so long. */
const PAUSE_AFTER_FAILURE_MS = 1_000
/** For all of a request, to the last byte; far less than the service waits for an answer to its delivery. */
const TIMEOUT_MS = 5_000
/** Some 1,500 keys. */
const MAX_BYTES = 256 * 1024

/** Where an issuer publishes its keys. */
export const jwksUrl = (issuer: string): string => `${issuer.replace(/\/$/, '')}/.well-known/jwks.json`

/**
 * The keys of the JSON Web Key Set at a URL, fetched when first needed, again before they age, and when a token names
 * one that is not among them. However many tokens come, one request is under way at most, and a token whose key is
 * known waits for none within the hour. Rejects with an Error that names the URL and the reason. A set that is empty or
 * cannot be read changes nothing.
 *
 * @param options.now the time in epoch milliseconds
 */
export const remoteKeys = (url: string, { now = Date.now }: { now?: () => number } = {}): RemoteKeys => {
  let keys: readonly Jwk[] = []
  let fetchedAtMs = Number.NEGATIVE_INFINITY
  let failure: { error: Error; atMs: number } | undefined
  let underWay: { promise: Promise<void>; sinceMs: number } | undefined

  const fetchKeys = async (): Promise<void> => {
    const startedAtMs = now()
    try {
      keys = await readKeySet(url)
      fetchedAtMs = startedAtMs
      failure = undefined
    } catch (cause) {
      failure = { error: unavailable(url, cause), atMs: now() }
      throw failure.error
    }
  }

  /**
   * The request that is under way, or a new one. One that should
   * have ended long ago has died with the request it was made for.
   */
  const refresh = (): Promise<void> => {
    if (underWay && now() - underWay.sinceMs < 2 * TIMEOUT_MS) return underWay.promise
    if (failure && now() - failure.atMs < PAUSE_AFTER_FAILURE_MS) return Promise.reject(failure.error)
    const promise = fetchKeys().finally(() => {
      if (underWay?.promise === promise) underWay = undefined
    })
    promise.catch(() => {})
    underWay = { promise, sinceMs: now() }
    return promise
  }

  return async (kid, context = {}) => {
    const ageMs = now() - fetchedAtMs
    const isMissing = kid !== undefined && !keys.some(key => key.kid === kid)
    if (isMissing ? ageMs < LEAST_BETWEEN_MS : ageMs < REFRESH_AFTER_MS) return keys
    if (isMissing || ageMs > STALE_MS) {
      await within(TIMEOUT_MS, refresh(), () => unavailable(url, new Error('no answer in time')))
      return keys
    }
    const inBackground = refresh().catch(() => {})
    context.waitUntil?.(inBackground)
    return keys
  }
}

/** A promise of another request may never settle where the runtime ends that request's work. */
const within = async (ms: number, promise: Promise<void>, error: () => Error): Promise<void> => {
  let timer: ReturnType<typeof setTimeout> | undefined
  const tooLate = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(error()), ms + 250)
  })
  await Promise.race([promise, tooLate]).finally(() => clearTimeout(timer))
}

/** The keys at a URL. Rejects with what is wrong with the answer. */
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

/** The keys of a set that delivery tokens may be signed with. Throws an Error when there is none. */
const usableKeys = (set: unknown): readonly Jwk[] => {
  const keys = isObject(set) ? keysIn(set) : undefined
  if (keys === undefined) throw new Error('no JSON Web Key Set')
  // Keys of other kinds stay: a token that names one is told so.
  const usable = keys.filter(key => key.crv !== 'Ed25519' || isUsable(key))
  if (!usable.some(isUsable)) throw new Error('no Ed25519 key in it')
  return usable
}

/** The keys of a set, or of a list; undefined where it is neither. */
export const keysIn = (value: unknown): readonly Jwk[] | undefined => {
  const keys = isObject(value) ? value.keys : value
  return Array.isArray(keys) ? keys.filter(isObject) : undefined
}

/** RFC 8037: an Ed25519 public key with a name. */
export const isUsable = ({ kty, crv, x, kid }: Jwk): boolean =>
  kty === 'OKP' &&
  crv === 'Ed25519' &&
  typeof kid === 'string' &&
  typeof x === 'string' &&
  isBase64url(x) &&
  fromBase64url(x).length === 32

/** The `kid` in a token's header, believed in nothing but for looking a key up; undefined if it cannot be read. */
export const kidOf = (token: string): string | undefined => {
  try {
    const { kid } = JSON.parse(toText(fromBase64url(token.split('.')[0]!)))
    return typeof kid === 'string' ? kid : undefined
  } catch {
    return undefined
  }
}

const unavailable = (url: string, cause: unknown): Error => {
  const { cause: deeper = cause } = (cause ?? {}) as { cause?: unknown }
  const why = deeper instanceof Error ? deeper.message || String((deeper as { code?: unknown }).code) : String(deeper)
  return new Error(`The issuer’s keys at ${url} could not be had: ${why}.`, { cause })
}
