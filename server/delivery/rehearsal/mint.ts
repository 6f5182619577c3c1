import { createHash, createHmac, createPublicKey, type KeyObject, sign } from 'node:crypto'
import { type JWTHeaderParameters, SignJWT } from 'jose'
import { TOKEN_LIFETIME_SECONDS } from '../../../shared/delivery-token.ts'

/** The delivery that the tokens of a mint are for, and what signs them. */
export interface Struck {
  issuer: string
  audience: string
  kid: string
  /** An Ed25519 key. */
  key: KeyObject
  webhookId: string
  jti: string
  sub: string
  /** In epoch seconds. */
  iat: number
  body: string
}

const json = JSON.stringify
export const encode = (text: string | Uint8Array): string => Buffer.from(text as string).toString('base64url')
export const digestOf = (bytes: string | Uint8Array): string => createHash('sha256').update(bytes).digest('base64url')

/** Makes tokens for one delivery: the right one, and any other, as a library or only a hand would make it. */
export class Mint {
  readonly issuer: string
  readonly audience: string
  readonly kid: string
  readonly key: KeyObject
  readonly webhookId: string
  readonly jti: string
  readonly iat: number
  readonly exp: number
  readonly body: string
  readonly header: { alg: string; kid: string; typ: string }
  readonly claims: Record<string, unknown>
  #good: string | undefined

  constructor({ issuer, audience, kid, key, webhookId, jti, sub, iat, body }: Struck) {
    this.issuer = issuer
    this.audience = audience
    this.kid = kid
    this.key = key
    this.webhookId = webhookId
    this.jti = jti
    this.iat = iat
    this.exp = iat + TOKEN_LIFETIME_SECONDS
    this.body = body
    this.header = { alg: 'EdDSA', kid, typ: 'JWT' }
    this.claims = { iss: issuer, aud: audience, sub, jti, iat, exp: this.exp, body_sha256: digestOf(body) }
  }

  /** The token that must be taken. */
  get good(): string {
    this.#good ??= this.withClaims({})
    return this.#good
  }

  get goodHeader(): string {
    return this.good.split('.')[0]!
  }

  get goodClaims(): string {
    return this.good.split('.')[1]!
  }

  get goodSignature(): string {
    return this.good.split('.')[2]!
  }

  /** The members of the body. */
  get fields(): Record<string, unknown> {
    return JSON.parse(this.body)
  }

  get pem(): string {
    return createPublicKey(this.key).export({ format: 'pem', type: 'spki' }).toString()
  }

  /** The public key's bytes. */
  get x(): Buffer {
    return Buffer.from(createPublicKey(this.key).export({ format: 'jwk' }).x!, 'base64url')
  }

  /** Claims in which base64url has a `-` or a `_`. */
  get varied(): string {
    return encode(json({ ...this.claims, sub: '??>>~~' }))
  }

  /** As jose signs, which leaves the claims as they are given. */
  byJose(claimed: object = {}, head: object = {}, key: KeyObject = this.key): Promise<string> {
    return new SignJWT({ ...this.claims, ...claimed })
      .setProtectedHeader({ ...this.header, ...head } as JWTHeaderParameters)
      .sign(key, 'crit' in head ? { crit: { b64: true } } : {})
  }

  /** As no library would sign: any text as header and claims, with a matching signature. */
  byHand(head: string | Uint8Array, content: string | Uint8Array, key?: KeyObject): string {
    return this.signedAs(encode(head), encode(content), key)
  }

  /** Any header and claims, encoded as given, with a matching signature. */
  signedAs(head: string, content: string, key: KeyObject = this.key): string {
    const input = `${head}.${content}`
    return `${input}.${encode(sign(null, Buffer.from(input), key))}`
  }

  withHeader(head: object, key?: KeyObject): string {
    return this.byHand(json({ ...this.header, ...head }), json(this.claims), key)
  }

  withClaims(claimed: object): string {
    return this.byHand(json(this.header), json({ ...this.claims, ...claimed }))
  }

  byHmac(secret: string | Uint8Array, head: object = {}): string {
    const input = `${encode(json({ ...this.header, alg: 'HS256', ...head }))}.${encode(json(this.claims))}`
    return `${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`
  }

  /** A token for another body, or with other claims. */
  tokenFor(bytes: string | Uint8Array, claimed: object = {}): string {
    return this.withClaims({ body_sha256: digestOf(bytes), ...claimed })
  }

  /** The token of another attempt of the same delivery, made that many seconds later. */
  retryToken(seconds: number): string {
    return this.withClaims({ iat: this.iat + seconds, exp: this.exp + seconds })
  }

  /** A token with one claim more, of exactly so many characters. */
  tokenOfLength(characters: number): string {
    const least = Math.floor(((characters - this.withClaims({ x: '' }).length) * 3) / 4) - 1
    return [0, 1, 2, 3]
      .map(more => this.withClaims({ x: 'x'.repeat(least + more) }))
      .find(it => it.length === characters)!
  }

  bitFlipped(): string {
    const bytes = Buffer.from(this.goodSignature, 'base64url')
    bytes[10]! ^= 1
    return `${this.goodHeader}.${this.goodClaims}.${encode(bytes)}`
  }

  /** S + L is the same number to a careless verifier (RFC 8032 section 5.1.7). */
  malleable(): string {
    const L = 2n ** 252n + 27742317777372353535851937790883648493n
    const bytes = Buffer.from(this.goodSignature, 'base64url')
    let s = BigInt(`0x${Buffer.from(bytes.subarray(32)).reverse().toString('hex')}`) + L
    for (let i = 32; i < 64; i++, s >>= 8n) bytes[i] = Number(s & 255n)
    return `${this.goodHeader}.${this.goodClaims}.${encode(bytes)}`
  }

  /** The last character of 64 bytes in base64url has four bits that mean nothing. */
  lastCharacterChanged(): string {
    return this.good.slice(0, -1) + nextCharacter(this.good.at(-1)!)
  }

  pathInAnotherCase(): string {
    const { origin } = new URL(this.audience)
    const path = this.audience.slice(origin.length)
    return origin + (path === path.toLowerCase() ? path.toUpperCase() : path.toLowerCase())
  }

  onAnotherPort(): string {
    const { protocol, hostname, port } = new URL(this.audience)
    const path = this.audience.slice(new URL(this.audience).origin.length)
    return `${protocol}//${hostname}:${Number(port || 443) - 1}${path}`
  }
}

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
const nextCharacter = (character: string): string => ALPHABET[ALPHABET.indexOf(character) + 1]!

/** The same bytes in base64url whose last character has a bit that means nothing. */
export const strayBits = (text: string): string => {
  // White space in JSON changes nothing, and makes a length that has such bits.
  const bytes = Buffer.from(text, 'base64url')
  const padded = bytes.length % 3 === 0 ? encode(Buffer.concat([bytes, Buffer.from(' ')])) : text
  return padded.slice(0, -1) + nextCharacter(padded.at(-1)!)
}

/** The same content in base64url, and one character more: six bits, which are no byte. */
export const strayCharacter = (text: string): string => {
  const content = Buffer.from(text, 'base64url').toString()
  return `${encode(content.padEnd(content.length + ((3 - (Buffer.byteLength(content) % 3)) % 3)))}A`
}
