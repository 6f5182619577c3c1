import {
  type Check,
  checkAlgorithm,
  checkDigest,
  checkEqual,
  checkExpiry,
  checkFormat,
  checkIssuedAt,
  checkJti,
  checkReplay,
  checkSignature,
  checkWebhook,
  findKey,
  type Jwk,
  readBody,
} from './token-check.ts'
import { readToken } from './token-format.ts'

export { type Check, type CheckName, type Jwk, TOKEN_LIFETIME_SECONDS } from './token-check.ts'

export type Verification = {
  /** True if no check failed and the signature was checked. */
  ok: boolean
  /** The token's own content, to be trusted only if `ok`; undefined if it cannot be read. */
  header: Record<string, unknown> | undefined
  claims: Record<string, unknown> | undefined
  checks: Check[]
}

/**
 * Checks a delivery token as a receiver should, and reports every check, even after one has failed. Never rejects,
 * whatever the token, the body or the keys contain.
 *
 * @param given.keys the sender's published keys
 * @param given.issuer the sender's issuer address; without it the issuer is not checked
 * @param given.audience the endpoint's URL as registered, or several that it is registered under; without it the
 *   audience is not checked
 * @param given.at the time to check against; by default now
 * @param given.body the delivery's raw body, whose `eventId` the `jti` must equal, and its SHA-256 the claim
 *   `body_sha256`
 * @param given.webhookIds the receiver's own webhooks, one of which the body must name; without them the webhook is not
 *   checked
 * @param given.seen whether a `jti` has been handled already; without it replays are not detected
 */
export const verifyDeliveryToken = async (
  token: string,
  given: {
    keys: readonly Jwk[]
    issuer?: string
    audience?: string | readonly string[]
    at?: Date
    body?: string | Uint8Array
    webhookIds?: readonly string[]
    seen?: (jti: string) => boolean
  },
): Promise<Verification> => {
  const nowSeconds = (given.at ?? new Date()).getTime() / 1000
  const { header, claims, fault } = readToken(token)
  const format = checkFormat(fault)
  const algorithm = checkAlgorithm(header)
  const { key, check: keyCheck } = findKey(header, given.keys)
  const body = readBody(given.body)
  const checks = [
    format,
    algorithm,
    keyCheck,
    await checkSignature(token, key, [format, algorithm, keyCheck]),
    checkEqual('issuer', 'iss', claims, given.issuer),
    checkEqual('audience', 'aud', claims, given.audience),
    checkExpiry(claims, nowSeconds),
    checkJti(claims, body),
    await checkDigest(claims, body),
    checkWebhook(body, given.webhookIds),
    checkReplay(claims, given.seen),
    checkIssuedAt(claims, nowSeconds),
  ]
  return { ok: checks.every(check => check.status !== 'failed'), header, claims, checks }
}
