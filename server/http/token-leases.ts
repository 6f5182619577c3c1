import type { KeyObject } from 'node:crypto'
import { type Authorization, secretKey, signature, signaturesMatch } from '../../shared/hmac.ts'
import type { AccessToken } from '../domain/access-tokens.ts'

/** A token as it was read, with the key of its secret, and until when (`performance.now()`) it may be taken for that. */
export type Lease = { token: AccessToken; key: KeyObject; until: number }

/** A secret to open and compute with when there is none, so that an unknown key costs what a wrong signature costs. */
export const NO_SECRET = Buffer.alloc(32).toString('base64')

const NO_KEY = secretKey(NO_SECRET)

const MOST_LEASES = 10_000

/**
 * The tokens that have just signed a request, so that the next of each needs no statement. They only ever say yes: whatever they do
 * not say yes to is looked up, and costs the same whether its key is known, leased or neither.
 */
export const createLeases = () => {
  const leases = new Map<string, Lease>()
  return {
    /** The lease of the token that has made a signature of `text`, if it has one. */
    callerOf(given: Authorization, text: string): Lease | undefined {
      const lease = leases.get(given.credential)
      const matches = signaturesMatch(signature(lease?.key ?? NO_KEY, text), given.signature)
      return lease && matches && performance.now() < lease.until ? lease : undefined
    },

    add(lease: Lease): Lease {
      // In the order of their ends: all are as long.
      for (const [apiKey, { until }] of leases) {
        if (until > performance.now() && leases.size < MOST_LEASES) break
        leases.delete(apiKey)
      }
      leases.delete(lease.token.apiKey)
      leases.set(lease.token.apiKey, lease)
      return lease
    },
  }
}
