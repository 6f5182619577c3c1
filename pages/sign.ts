// Signs API requests (docs/signing.md) with the Web Crypto API.

export type Credentials = { apiKey: string; apiSecret: string }

/** A key that signs and cannot be exported, not even by this page. */
export type Signer = { apiKey: string; key: CryptoKey }

/** Reads what was typed in. Throws an Error that says what is wrong with it. */
export const signerOf = async ({ apiKey, apiSecret }: Credentials): Promise<Signer> => {
  if (!globalThis.isSecureContext) {
    throw new Error('Browsers sign on https and on this machine only. Use https, or: tidings explore')
  }
  let secret: Uint8Array<ArrayBuffer>
  try {
    secret = Uint8Array.from(atob(apiSecret.trim()), character => character.charCodeAt(0))
  } catch {
    throw new Error('The secret is not base64: give it as it was shown when the token was made.')
  }
  const key = await crypto.subtle.importKey('raw', secret, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign'])
  return { apiKey: apiKey.trim(), key }
}

/** The headers that sign a POST, except `Host`, which the browser sends. */
export const signedHeaders = async (
  { apiKey, key }: Signer,
  url: URL,
  body: string,
): Promise<Record<string, string>> => {
  const encoder = new TextEncoder()
  const signed: Record<string, string> = {
    host: url.host,
    'x-date': new Date().toUTCString(),
    'x-content-sha256': base64(await crypto.subtle.digest('SHA-256', encoder.encode(body))),
    'x-nonce': crypto.randomUUID(),
  }
  const text = `POST\n${url.pathname}${url.search}\n${Object.values(signed).join(';')}`
  const signature = base64(await crypto.subtle.sign('HMAC', key, encoder.encode(text)))
  const { host: _, ...headers } = signed
  const names = Object.keys(signed).join(';')
  return { ...headers, authorization: `HMAC-SHA256 Credential=${apiKey}&SignedHeaders=${names}&Signature=${signature}` }
}

const base64 = (bytes: ArrayBuffer): string => btoa(String.fromCharCode(...new Uint8Array(bytes)))
