// Bytes and base64url without Node's Buffer, because this file is part of the receiver kit.

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Decodes UTF-8. Throws a TypeError if the bytes are not valid UTF-8. */
export const toText = (bytes: Uint8Array): string => UTF8.decode(bytes)

export const toBytes = (text: string): Uint8Array<ArrayBuffer> =>
  new TextEncoder().encode(text) as Uint8Array<ArrayBuffer>

/** Base64url without padding (RFC 4648 section 5). */
export const toBase64url = (bytes: Uint8Array): string => {
  let binary = ''
  for (const byte of bytes) binary += String.fromCharCode(byte)
  return btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
}

/** The bytes of base64url, ignoring unused last bits; no bytes if the text has other characters. */
export const fromBase64url = (text: string): Uint8Array<ArrayBuffer> => {
  if (!/^[\w-]*$/.test(text)) return new Uint8Array()
  const whole = text.length % 4 === 1 ? text.slice(0, -1) : text
  return Uint8Array.from(atob(whole.replaceAll('-', '+').replaceAll('_', '/')), it => it.charCodeAt(0))
}

/** Whether the text is canonical base64url (RFC 4648 section 5): no padding, and unused bits are zero. */
export const isBase64url = (text: string): boolean => toBase64url(fromBase64url(text)) === text

/** The SHA-256 in base64url, as in the claim `body_sha256` of a delivery token. */
export const sha256 = async (bytes: Uint8Array<ArrayBuffer>): Promise<string> =>
  toBase64url(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes)))
