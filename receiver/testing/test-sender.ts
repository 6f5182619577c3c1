import { calculateJwkThumbprint, exportJWK, generateKeyPair, SignJWT } from 'jose'
import { sha256, toBytes } from '../../shared/bytes.ts'
import { type Jwk, TOKEN_LIFETIME_SECONDS } from '../../shared/delivery-token.ts'
import { type Payloads, payloadShapes } from '../payloads.ts'
import { examplePayload } from './example-payload.ts'

/** A delivery to sign. Whatever is left out gets a valid value. */
export interface TestDelivery<Type extends string = string> {
  /** By default `project_report_quarterly_submitted`; any text is allowed. */
  eventType?: Type
  /** By default an example of the type's payload. */
  payload?: Type extends keyof Payloads ? Payloads[Type] : unknown
  /** The `aud` that the receiver expects; by default `https://receiver.test/hooks`. */
  audience?: string
  /** By default `https://tidings.test`, or the test server's address. */
  issuer?: string
  /** The event's id, the token's `sub`. */
  id?: string
  /** The delivery's id, the token's `jti`. Reuse it to make a retry. */
  eventId?: string
  webhookId?: string
  /** ISO 8601 with offset. */
  eventTime?: string
  /** When the token was made, in epoch seconds; by default now. It expires 300 s later. */
  issuedAt?: number
  /** Claims that replace or extend the usual ones; `undefined` leaves one out. */
  claims?: Record<string, unknown>
}

/** A signed delivery, ready to send. */
export interface SignedDelivery {
  method: 'POST'
  url: string
  headers: { 'content-type': string; authorization: string; 'content-digest': string }
  authorization: string
  body: string
  /** The delivery as a Request of the Fetch API, a new one each time. */
  readonly request: Request
}

export interface TestSender {
  issuer: string
  /** The private key as a JWK with `d`. It is generated at first use, so that no published key can sign in its name. */
  key(): Promise<Jwk>
  /** The public key, for the option `keys` of a receiver. */
  keys(): Promise<readonly Jwk[]>
  /** The key set, as `/.well-known/jwks.json` answers it. */
  keySet(): Promise<{ keys: readonly Jwk[] }>
  /** Signs a delivery as Tidings does. */
  sign<Type extends string>(delivery?: TestDelivery<Type>): Promise<SignedDelivery>
}

/**
 * A sender of deliveries with a key of its own.
 *
 * @example
 *   const sender = testSender()
 *   const receiver = fetchReceiver({ issuer: 'https://tidings.test', audience, keys: await sender.keys() }, handler)
 *   const response = await receiver((await sender.sign({ audience })).request)
 */
export const testSender = ({ issuer = 'https://tidings.test' }: { issuer?: string } = {}): TestSender => {
  let made: ReturnType<typeof makeKey> | undefined
  const pair = () => {
    made ??= makeKey()
    return made
  }
  const keys = async () => [(await pair()).jwk]

  return {
    issuer,
    key: async () => (await pair()).privateJwk,
    keys,
    keySet: async () => ({ keys: await keys() }),
    async sign(delivery = {}) {
      const { key, kid } = await pair()
      const { audience: url = 'https://receiver.test/hooks', eventId = crypto.randomUUID() } = delivery
      const body = bodyOf(delivery, eventId)
      const digest = await sha256(toBytes(body))
      const iat = delivery.issuedAt ?? Math.floor(Date.now() / 1000)
      const token = await new SignJWT({
        iss: delivery.issuer ?? issuer,
        aud: url,
        sub: delivery.id ?? crypto.randomUUID(),
        jti: eventId,
        iat,
        exp: iat + TOKEN_LIFETIME_SECONDS,
        body_sha256: digest,
        ...delivery.claims,
      })
        .setProtectedHeader({ alg: 'EdDSA', kid, typ: 'JWT' })
        .sign(key)
      const authorization = `Bearer ${token}`
      const headers = {
        'content-type': 'application/json',
        authorization,
        'content-digest': `sha-256=:${inBase64(digest)}:`,
      }
      return {
        method: 'POST',
        url,
        headers,
        authorization,
        body,
        get request() {
          return new Request(url, { method: 'POST', headers, body })
        },
      }
    },
  }
}

const makeKey = async () => {
  const { privateKey } = await generateKeyPair('EdDSA', { crv: 'Ed25519', extractable: true })
  const { kty, crv, x, d } = (await exportJWK(privateKey)) as { kty: string; crv: string; x: string; d: string }
  const kid = await calculateJwkThumbprint({ kty, crv, x })
  const jwk: Jwk = { kty, crv, x, kid, use: 'sig', alg: 'EdDSA' }
  return { key: privateKey, kid, jwk, privateJwk: { ...jwk, d } satisfies Jwk }
}

const bodyOf = (delivery: TestDelivery, eventId: string): string => {
  const { webhookId = crypto.randomUUID(), eventType = 'project_report_quarterly_submitted' } = delivery
  const { eventTime = new Date().toISOString().replace('Z', '+00:00') } = delivery
  const { payload = Object.hasOwn(payloadShapes, eventType) ? examplePayload(eventType as keyof Payloads) : {} } =
    delivery
  return JSON.stringify({ webhookId, eventId, eventType, eventTime, payload })
}

const inBase64 = (base64url: string): string => `${base64url.replaceAll('-', '+').replaceAll('_', '/')}=`
