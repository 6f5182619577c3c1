import { createRemoteJWKSet } from 'jose'
import type { Jwk } from '../shared/delivery-token.ts'

/** The public keys that a token may be checked with; asked for each token, by its `kid`. Rejects when they cannot be had. */
export type KeySource = (kid: string | undefined) => Promise<readonly Jwk[]>

/** As long as the service lets its keys be cached. */
const FRESH_MS = 300_000
/** Keys that are known already serve for so long while the issuer does not answer; a key that was withdrawn must not serve for ever. */
const STALE_MS = 3_600_000
/** An unknown `kid` may mean new keys, but untrusted senders must not be able to cause a request with each token. */
const LEAST_BETWEEN_MS = 10_000
/** After a request for the keys that failed, none is made for so long. */
const PAUSE_AFTER_FAILURE_MS = 1_000
/** Far less than the service waits for an answer to its delivery. */
const TIMEOUT_MS = 5_000

/** Where an issuer publishes its keys. */
export const jwksUrl = (issuer: string): string => `${issuer.replace(/\/$/, '')}/.well-known/jwks.json`

/**
 * The keys of the JSON Web Key Set at a URL, fetched when first needed, and again when they have aged or a token names one that is
 * not among them. However many tokens come, one request is under way at most. Rejects with an Error that names the URL and
 * the reason, which an issuer that is being restarted need not cause: keys that are known go on serving.
 */
export const remoteKeys = (url: string): KeySource => {
  const published = createRemoteJWKSet(new URL(url), {
    cacheMaxAge: FRESH_MS,
    cooldownDuration: LEAST_BETWEEN_MS,
    timeoutDuration: TIMEOUT_MS,
  })
  let keys: readonly Jwk[] = []
  let fetchedAtMs = Number.NEGATIVE_INFINITY
  let failure: { error: Error; atMs: number } | undefined

  const refresh = async (): Promise<void> => {
    if (failure && Date.now() - failure.atMs < PAUSE_AFTER_FAILURE_MS) throw failure.error
    try {
      await published.reload()
      keys = published.jwks()!.keys
      fetchedAtMs = Date.now()
      failure = undefined
    } catch (cause) {
      failure = { error: unavailable(url, cause), atMs: Date.now() }
      throw failure.error
    }
  }

  return async kid => {
    const isMissing = kid !== undefined && !keys.some(key => key.kid === kid)
    if (published.fresh && (!isMissing || published.coolingDown)) return keys
    try {
      await refresh()
    } catch (error) {
      if (isMissing || Date.now() - fetchedAtMs > STALE_MS) throw error
    }
    return keys
  }
}

/** The `kid` in a token's header, believed in nothing but for looking a key up; undefined if it cannot be read. */
export const kidOf = (token: string): string | undefined => {
  try {
    const { kid } = JSON.parse(Buffer.from(token.split('.')[0]!, 'base64url').toString('utf8'))
    return typeof kid === 'string' ? kid : undefined
  } catch {
    return undefined
  }
}

const unavailable = (url: string, cause: unknown): Error => {
  const { cause: deeper = cause } = cause as { cause?: unknown }
  const why =
    deeper instanceof Error ? deeper.message || String((deeper as NodeJS.ErrnoException).code) : String(deeper)
  return new Error(`The issuer’s keys at ${url} could not be had: ${why}.`, { cause })
}
