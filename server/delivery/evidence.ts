/** What an attempt was, beside its result. A part that is not known is missing. */
export type Evidence = {
  /** The address that the request went to, or that the client has that took it. */
  remoteAddress?: string
  httpVersion?: string
  phases?: Phases
  responseHeaders?: Record<string, string>
  requestHeaders?: Record<string, string>
  /** The `kid` of the key that signed its token. */
  keyId?: string
  /** The access token of the client that took it, with `transport: pull`. */
  pulledBy?: { id: string; name: string }
}

/** Milliseconds. A request on a kept connection has only the last. */
export type Phases = {
  lookupMs?: number
  connectMs?: number
  tlsMs?: number
  /** From the request to the end of the answer's headers. */
  firstByteMs?: number
}

/** The headers of an answer that are kept, and the length of their names and values together. */
const MOST_HEADERS = 16
const MOST_LENGTH = 2048

/** Headers that carry cookies or credentials, by their names as receivers and gateways choose them. */
const SECRET_NAME = new RegExp(
  [
    /cookie|session|\bsid\b|csrf|xsrf/,
    /authori[sz]ation|authentication-info|\bauth\b/,
    /token|secret|credential|passw|\botp\b|signature|jwt|(api|access|private)[-_]?key/,
  ]
    .map(({ source }) => source)
    .join('|'),
)
/** A credential in a value: an answer may repeat the request's token under any name. */
const SECRET_VALUE = /\b(bearer|basic|negotiate|ntlm)\s+[\w+/.~-]{6,}={0,2}(\s|,|$)|\beyJ[\w-]+\.[\w-]+\./i

/** Those of the connection to the nearest server, not of the answer (RFC 9110, 7.6.1). */
const OF_CONNECTION = new Set(['connection', 'keep-alive', 'transfer-encoding'])

/** The headers of an answer that may be kept: neither cookies nor credentials, in the order of the answer. */
export const keptHeaders = (headers: Record<string, string | string[] | undefined>): Record<string, string> => {
  const kept: [name: string, value: string][] = []
  let length = 0
  for (const [name, given] of Object.entries(headers)) {
    if (given === undefined || OF_CONNECTION.has(name) || SECRET_NAME.test(name)) continue
    const text = Array.isArray(given) ? given.join(', ') : given
    if (SECRET_VALUE.test(text)) continue
    const value = /^(content-)?location$/.test(name) ? withoutSecrets(text) : text
    length += name.length + value.length
    if (length > MOST_LENGTH) break
    kept.push([name, value])
    if (kept.length === MOST_HEADERS) break
  }
  // A header may be called __proto__: assigned as a property, it would be lost.
  return Object.fromEntries(kept)
}

/** A URL without the parts that may carry a credential. */
const withoutSecrets = (location: string): string =>
  location.replace(/[?#].*$/s, '').replace(/^((?:[a-z][a-z0-9+.-]*:)?\/\/)[^/]*@/i, '$1')

/** The request's headers that Tidings sets itself, without its token. */
const OWN = ['content-type', 'content-digest', 'user-agent', 'traceparent', 'webhook-id', 'webhook-timestamp'] as const

/** The headers of a request that may be kept. The values of others are known to the webhook's owner alone. */
export const ownHeaders = (headers: Record<string, string>): Record<string, string> => {
  const kept: Record<string, string> = {}
  for (const name of OWN) if (headers[name] !== undefined) kept[name] = headers[name]
  return kept
}
