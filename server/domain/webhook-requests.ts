import { badInput, TidingsError } from '../../shared/errors.ts'
import { keyOfSecret, newStandardSecret, SECRET_FORM } from '../../shared/standard-webhooks.ts'
import { toIso } from '../../shared/time.ts'
import type { WebhookSigning } from '../../shared/vocabulary.ts'
import type { Sealer } from '../keys/seal.ts'

// What each request to a webhook carries besides the token. It is stored as one sealed text, `webhooks.request_sealed`.

/** Secrets of Standard Webhooks, and static headers. */
export type Carried = {
  /**
   * The present secret first. An earlier one also signs until its end. Empty unless `signing` is `standard`.
   */
  secrets: { secret: string; until: number | null }[]
  headers: Record<string, string>
}

const NOTHING: Carried = { secrets: [], headers: {} }

/** The sealing context of a webhook's `request_sealed`. */
export const carriedSealContext = (webhookId: string): string => `requests of webhook ${webhookId}`

/** What the requests of a webhook carry; nothing if nothing is stored. */
export const openCarried = (sealer: Sealer, webhookId: string, sealed: string | null): Carried =>
  sealed === null ? NOTHING : JSON.parse(sealer.open(sealed, carriedSealContext(webhookId)))

/** The stored form; null if there is nothing. */
export const sealCarried = (sealer: Sealer, webhookId: string, carried: Carried): string | null =>
  carried.secrets.length === 0 && Object.keys(carried.headers).length === 0
    ? null
    : sealer.seal(JSON.stringify(carried), carriedSealContext(webhookId))

/** A client's input for what requests carry. Undefined leaves it as it is. */
export type CarriedInput = {
  signing?: WebhookSigning | undefined
  /** The caller's own secret. Undefined: one is made. */
  secret?: string | undefined
  /** The complete set of static headers. */
  headers?: Record<string, string> | undefined
}

/** Throws BAD_USER_INPUT unless the secret and the headers are well formed. No message repeats a value. */
export const checkCarried = ({ secret, headers }: CarriedInput): void => {
  if (secret !== undefined && !keyOfSecret(secret)) throw badInput('secret', `must be ${SECRET_FORM}`)
  if (headers !== undefined) checkHeaders(headers)
}

/** What requests carry after a change. Throws BAD_USER_INPUT. */
export const carriedAfter = (
  before: Carried,
  { signing, secret, headers }: CarriedInput,
  candidate: string,
): Carried => {
  const isStandard = signing === undefined ? before.secrets.length > 0 : signing === 'standard'
  if (secret !== undefined && !isStandard) throw badInput('secret', 'signs requests only with signing: standard')
  const [present] = before.secrets
  if (present && secret !== undefined && secret !== present.secret && isStandard) {
    throw badInput('secret', 'the webhook has another one; rotateWebhookSecret replaces it')
  }
  const made = present ? before.secrets : [{ secret: secret ?? candidate, until: null }]
  return { secrets: isStandard ? made : [], headers: headers ?? before.headers }
}

/** The secret for a webhook that gets one in this call: the caller's own, or a new one. */
export const candidateOf = ({ secret }: CarriedInput): string => secret ?? newStandardSecret()

/** The secret that a change has made; null if it has made none. */
export const madeSecret = (before: Carried, after: Carried): string | null => {
  const secret = after.secrets[0]?.secret
  return secret === undefined || secret === before.secrets[0]?.secret ? null : secret
}

/** The most secrets that sign at a time, so that the header stays short. */
const MOST_SECRETS = 5

/**
 * What requests carry once `secret` has replaced the present one, which goes on signing for `graceMs`. Without a grace
 * all earlier ones end. Undefined if there is no secret to replace. Throws BAD_USER_INPUT or CONFLICT.
 */
export const rotated = (
  { secrets, headers }: Carried,
  secret: string,
  { now, graceMs }: { now: number; graceMs: number },
): Carried | undefined => {
  const [present, ...earlier] = secrets
  if (!present) return undefined
  if (secrets.some(known => known.secret === secret)) throw badInput('secret', 'is one that the webhook has already')
  const signing =
    graceMs === 0 ? [] : [{ ...present, until: now + graceMs }, ...earlier.filter(({ until }) => until! > now)]
  if (signing.length >= MOST_SECRETS) {
    const ends = earlier.map(({ until }) => until!)
    throw new TidingsError(
      'CONFLICT',
      `${MOST_SECRETS} secrets sign already. One of them ends at ${toIso(Math.min(...ends))}; ` +
        'graceSeconds: 0 ends all earlier ones now.',
      { limit: MOST_SECRETS },
    )
  }
  return { secrets: [{ secret, until: null }, ...signing], headers }
}

const MOST_HEADERS = 16
const LONGEST_NAME = 64
const LONGEST_VALUE = 1024
/** Of all names and values: servers accept 8 KiB or more of headers, and the delivery has its own. */
const LONGEST_ALL = 4096
/** RFC 9110, section 5.6.2. */
const NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
/** RFC 9110, section 5.5, without bytes that are not ASCII. */
const VALUE = /^[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?$/

/** Those that the delivery or HTTP itself sets; names that end with `-` stand for all that begin so. */
const RESERVED = [
  ...['authorization', 'content-', 'user-agent', 'webhook-', 'traceparent', 'tracestate'],
  ...['accept-encoding', 'connection', 'date', 'expect', 'host', 'http2-settings', 'keep-alive', 'proxy-', 'range'],
  ...['te', 'trailer', 'transfer-encoding', 'upgrade', 'via'],
]

const isReserved = (name: string): boolean =>
  RESERVED.some(reserved => (reserved.endsWith('-') ? name.startsWith(reserved) : name === reserved))

const checkHeaders: (value: unknown) => asserts value is Record<string, string> = value => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw badInput('headers', 'must be an object with a string for each name, such as {"X-Api-Key": "…"}')
  }
  const headers = Object.entries(value)
  if (headers.length > MOST_HEADERS) {
    throw badInput('headers', `has ${headers.length} names; at most ${MOST_HEADERS} are allowed`)
  }
  const seen = new Set<string>()
  let length = 0
  for (const [name, text] of headers) {
    const shown = JSON.stringify(name.slice(0, LONGEST_NAME))
    if (!NAME.test(name) || name.length > LONGEST_NAME) {
      throw badInput('headers', `${shown} is no header name of at most ${LONGEST_NAME} characters`)
    }
    const lower = name.toLowerCase()
    if (isReserved(lower)) throw badInput('headers', `${shown} is set by the delivery or by HTTP itself`)
    if (seen.has(lower)) throw badInput('headers', `${shown} is named twice; upper and lower case are the same`)
    seen.add(lower)
    if (typeof text !== 'string' || !VALUE.test(text) || text.length > LONGEST_VALUE) {
      throw badInput('headers', `the value of ${shown} must be 1 to ${LONGEST_VALUE} printable ASCII characters`)
    }
    length += name.length + text.length
  }
  if (length > LONGEST_ALL) throw badInput('headers', `is longer than ${LONGEST_ALL} characters in all`)
}
