import { createHmac, randomBytes } from 'node:crypto'

// Standard Webhooks 1.0.0, symmetric signatures:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

/** The headers of a signed request, in the order in which libraries name them. */
export const standardHeaders = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const

/** How far the timestamp may be from the receiver's clock, as the official libraries have it. */
export const STANDARD_TOLERANCE_SECONDS = 300

const PREFIX = 'whsec_'
const SECRET_BYTES = { least: 24, most: 64, own: 32 }
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/

/** What a secret must look like, for messages. */
export const SECRET_FORM = `${PREFIX} and the base64 of ${SECRET_BYTES.least} to ${SECRET_BYTES.most} random bytes`

export const newStandardSecret = (): string => PREFIX + randomBytes(SECRET_BYTES.own).toString('base64')

/** The key of a secret; undefined if the secret does not have the form of `SECRET_FORM`. */
export const keyOfSecret = (secret: string): Buffer | undefined => {
  const text = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : ''
  if (text.length > 2 * SECRET_BYTES.most || !BASE64.test(text)) return undefined
  const key = Buffer.from(text, 'base64')
  return key.length >= SECRET_BYTES.least && key.length <= SECRET_BYTES.most ? key : undefined
}

/** What is signed: the three parts as they are sent. */
export type StandardContent = { id: string; timestampSeconds: number | string; body: string | Buffer }

/** The signature of a request by one key, as `webhook-signature` names it: `v1,` and the base64 of HMAC-SHA256. */
export const standardSignature = (key: Buffer, { id, timestampSeconds, body }: StandardContent): string =>
  `v1,${createHmac('sha256', key).update(`${id}.${timestampSeconds}.`).update(body).digest('base64')}`
