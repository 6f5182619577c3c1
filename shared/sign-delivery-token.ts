import { type KeyObject, sign } from 'node:crypto'
import { TOKEN_LIFETIME_SECONDS } from './delivery-token.ts'

/**
 * A delivery token: a JWT (RFC 7519) with exactly `{alg: 'EdDSA', kid, typ: 'JWT'}` as header (RFC 8037), valid for 300
 * s from `issuedAtSeconds` (epoch seconds). `key` is an Ed25519 private key, `jti` the delivery's id, `sub` its
 * event's, and `bodySha256` the SHA-256 of its body in base64url.
 *
 * Uses `sign` of node:crypto with a callback, because every attempt needs a signature: it works on another thread and
 * leaves a fifth of the synchronous call's work on this one (7 µs instead of 40). Signatures a second of jose's
 * SignJWT, synchronous `sign` and `sign` with a callback are as 1 : 1.9 : 3.2.
 */
export const signDeliveryToken = (token: {
  key: KeyObject
  kid: string
  issuer: string
  audience: string
  jti: string
  sub: string
  bodySha256: string
  issuedAtSeconds: number
}): Promise<string> => {
  const { key, kid, issuer, audience, jti, sub, bodySha256, issuedAtSeconds } = token
  const header = { alg: 'EdDSA', kid, typ: 'JWT' }
  const exp = issuedAtSeconds + TOKEN_LIFETIME_SECONDS
  const claims = { iss: issuer, aud: audience, sub, jti, iat: issuedAtSeconds, exp, body_sha256: bodySha256 }
  const input = `${encode(header)}.${encode(claims)}`
  return new Promise((resolve, reject) => {
    sign(null, Buffer.from(input), key, (error, signature) =>
      error ? reject(error) : resolve(`${input}.${signature.toString('base64url')}`),
    )
  })
}

const encode = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')
