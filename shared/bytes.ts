// Bytes and base64url by what every runtime has: this is part of the receiver kit, which knows no Buffer.

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** UTF-8 of exactly these bytes. Throws a TypeError where they are none. */
export const toText = (bytes: Uint8Array): string => UTF8.decode(bytes)

export const toBytes = (text: string): Uint8Array<ArrayBuffer> =>
  new TextEncoder().encode(text) as Uint8Array<ArrayBuffer>

/** Base64url without padding (RFC 4648 section 5). */
export const toBase64url = (bytes: Uint8Array): string => {
  let binary = ''
  for (const byte of bytes) binary += String.fromCharCode(byte)
  return btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
}

/** The bytes of base64url, whatever its last bits say; none of text in other characters. */
export const fromBase64url = (text: string): Uint8Array<ArrayBuffer> => {
  if (!/^[\w-]*$/.test(text)) return new Uint8Array()
  const whole = text.length % 4 === 1 ? text.slice(0, -1) : text
  return Uint8Array.from(atob(whole.replaceAll('-', '+').replaceAll('_', '/')), it => it.charCodeAt(0))
}

/** In the one way that RFC 4648 section 5 has of writing the bytes: no padding, and no bits set that are not used. */
export const isBase64url = (text: string): boolean => toBase64url(fromBase64url(text)) === text

/** SHA-256 in base64url: what the claim `body_sha256` of a delivery token says of the delivery's body. */
export const sha256 = async (bytes: Uint8Array<ArrayBuffer>): Promise<string> =>
  toBase64url(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes)))
