// Bytes and base64url without Node's Buffer, because this file is part of the receiver kit.
import { nodeBuffer, nodeCrypto } from './node-crypto.ts'

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const ENCODER = new TextEncoder()

/** Decodes UTF-8. Throws a TypeError if the bytes are not valid UTF-8. */
export const toText = (bytes: Uint8Array): string => UTF8.decode(bytes)

export const toBytes = (text: string): Uint8Array<ArrayBuffer> => ENCODER.encode(text) as Uint8Array<ArrayBuffer>

/** Base64url without padding (RFC 4648 section 5). */
export const toBase64url = (bytes: Uint8Array): string => {
  let binary = ''
  for (const byte of bytes) binary += String.fromCharCode(byte)
  return btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
}

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
const NONE = 64
/** The six bits of each character, by its code. */
const BITS = Uint8Array.from({ length: 128 }, (_, code) => {
  const bits = ALPHABET.indexOf(String.fromCharCode(code))
  return bits === -1 ? NONE : bits
})
const bitsAt = (text: string, at: number): number => BITS[text.charCodeAt(at)] ?? NONE

/** The bytes of base64url, ignoring unused last bits; no bytes if the text has other characters. */
export const fromBase64url = (text: string): Uint8Array<ArrayBuffer> => {
  const bytes = new Uint8Array((text.length * 3) >> 2)
  let pending = 0
  let pendingBits = 0
  let length = 0
  for (let at = 0; at < text.length; at++) {
    const bits = bitsAt(text, at)
    if (bits === NONE) return new Uint8Array()
    pending = ((pending << 6) | bits) & 0xffff
    pendingBits += 6
    if (pendingBits < 8) continue
    pendingBits -= 8
    bytes[length++] = pending >> pendingBits
  }
  return bytes
}

/** The bits of the last character that belong to no byte, by the length's rest of a division by four. */
const UNUSED_BITS = [0, NONE, 0b1111, 0b11]

/** What `fromCanonicalBase64url` does where there is no Buffer. */
export const decodeByHand = (text: string): Uint8Array<ArrayBuffer> | undefined => {
  const unused = UNUSED_BITS[text.length % 4]!
  const bytes = fromBase64url(text)
  if (unused === NONE || bytes.length !== (text.length * 3) >> 2) return undefined
  return text === '' || (bitsAt(text, text.length - 1) & unused) === 0 ? bytes : undefined
}

/** The bytes of canonical base64url (RFC 4648 section 5): no padding, and unused bits are zero. Undefined otherwise. */
export const fromCanonicalBase64url = (text: string): Uint8Array<ArrayBuffer> | undefined => {
  if (!nodeBuffer) return decodeByHand(text)
  const bytes = nodeBuffer.from(text, 'base64url')
  return bytes.toString('base64url') === text ? bytes : undefined
}

/** The SHA-256 in base64url, as in the claim `body_sha256` of a delivery token. */
export const sha256 = (bytes: Uint8Array<ArrayBuffer>): string | Promise<string> =>
  nodeCrypto
    ? (nodeCrypto.hash?.('sha256', bytes, 'base64url') ??
      nodeCrypto.createHash('sha256').update(bytes).digest('base64url'))
    : crypto.subtle.digest('SHA-256', bytes).then(digest => toBase64url(new Uint8Array(digest)))
