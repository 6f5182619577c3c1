import {
  type Body,
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
  explained,
  findKey,
  type Jwk,
  type Outcome,
  readBody,
} from './token-check.ts'
import { type Content, read, readToken } from './token-format.ts'

export { type Check, type CheckName, explained, type Jwk, TOKEN_LIFETIME_SECONDS } from './token-check.ts'

export type Verification = {
  /** True if no check failed and the signature was checked. */
  ok: boolean
  /** The token's own content, to be trusted only if `ok`; undefined if it cannot be read. */
  header: Record<string, unknown> | undefined
  claims: Record<string, unknown> | undefined
  checks: Check[]
}

/** What a delivery token is checked against. */
export interface Given {
  /** The sender's published keys. */
  keys: readonly Jwk[]
  /** The sender's issuer address; without it the issuer is not checked. */
  issuer?: string
  /** The endpoint's URL as registered, or several; without it the audience is not checked. */
  audience?: string | readonly string[]
  /** The time to check against; by default now. */
  at?: Date
  /** The delivery's raw body, whose `eventId` the `jti` must equal, and its SHA-256 the claim `body_sha256`. */
  body?: string | Uint8Array
  /** The receiver's own webhooks, one of which the body must name; without them the webhook is not checked. */
  webhookIds?: readonly string[]
  /** Whether a `jti` has been handled already; without it replays are not detected. */
  seen?: (jti: string) => boolean
}

/** The keys, or a function that looks them up by `kid`. It is asked only if header and algorithm are sound. */
type Keys = readonly Jwk[] | ((kid: string) => Promise<readonly Jwk[]>)

/** A delivery under examination. */
class Examination {
  readonly header: Content
  readonly claims: Content
  readonly #fault: ReturnType<typeof readToken>['fault']
  readonly #token: string
  readonly #given: Omit<Given, 'keys'> & { keys: Keys }
  #body: { read: Body | undefined } | undefined

  constructor(token: string, given: Omit<Given, 'keys'> & { keys: Keys }) {
    const { header, claims, fault } = readToken(token)
    this.header = header
    this.claims = claims
    this.#fault = fault
    this.#token = token
    this.#given = given
  }

  /** The body, parsed once, and only if a check needs it. */
  get body(): Body | undefined {
    this.#body ??= { read: readBody(this.#given.body) }
    return this.#body.read
  }

  /** The checks in their order. Each is made only when the one before it has been taken. */
  *checks(): Generator<Outcome | Promise<Outcome>, void> {
    const { issuer, audience, at, webhookIds, seen } = this.#given
    const { header, claims } = this
    const nowSeconds = (at ?? new Date()).getTime() / 1000
    const format = checkFormat(this.#fault)
    yield format
    const algorithm = checkAlgorithm(header)
    yield algorithm
    let found: ReturnType<typeof findKey> | undefined
    const find = (keys: readonly Jwk[]): Outcome => {
      found = findKey(header, keys)
      return found.outcome
    }
    const keys = this.#keys()
    yield keys instanceof Promise ? keys.then(find) : find(keys)
    yield checkSignature(this.#token, found?.key, found ? [format, algorithm, found.outcome] : [format, algorithm])
    yield checkEqual('issuer', 'iss', claims, issuer)
    yield checkEqual('audience', 'aud', claims, audience)
    yield checkExpiry(claims, nowSeconds)
    yield checkJti(claims, this.body)
    yield checkDigest(claims, this.body)
    yield checkWebhook(this.body, webhookIds)
    yield checkReplay(claims, seen)
    yield checkIssuedAt(claims, nowSeconds)
  }

  #keys(): readonly Jwk[] | Promise<readonly Jwk[]> {
    const { keys } = this.#given
    if (typeof keys !== 'function') return keys
    const kid = read(this.header, 'kid')
    return typeof kid === 'string' ? keys(kid) : []
  }
}

/**
 * Checks a delivery token as a receiver should, and reports every check, even after one has failed: what explains. A
 * receiver stops at the first failure (`examineDelivery`). Never rejects, whatever token, body or keys contain.
 */
export const verifyDeliveryToken = async (token: string, given: Given): Promise<Verification> => {
  const examination = new Examination(token, given)
  const checks: Check[] = []
  for (const outcome of examination.checks()) checks.push(explained(await outcome))
  const { header, claims } = examination
  return { ok: checks.every(check => check.status !== 'failed'), header, claims, checks }
}

/** A delivery as a receiver has examined it. Claims and body are to be trusted only if there is no `failed`. */
export interface Examined {
  /** The check that failed; undefined if none did. */
  failed: Outcome | undefined
  /** Whether the signature was verified. */
  isSigned: boolean
  kid: string | undefined
  claims: Content
  /** The body's content, parsed; undefined where no check has come to it. */
  content: () => Content
}

/**
 * Makes the same checks in the same order, and stops at the first that fails, so that a stranger's request costs no
 * more than it takes to see that it is one. Rejects only if the keys cannot be looked up.
 */
export const examineDelivery = async (
  token: string,
  given: Omit<Given, 'keys'> & { keys: Keys },
): Promise<Examined> => {
  const examination = new Examination(token, given)
  const kid = read(examination.header, 'kid')
  let isSigned = false
  let failed: Outcome | undefined
  for (const made of examination.checks()) {
    const outcome = made instanceof Promise ? await made : made
    if (outcome.status === 'failed') {
      failed = outcome
      break
    }
    isSigned ||= outcome.name === 'signature' && outcome.status === 'passed'
  }
  return {
    failed,
    isSigned,
    kid: typeof kid === 'string' ? kid : undefined,
    claims: examination.claims,
    content: () => examination.body?.content,
  }
}
