import type { Jwk } from './delivery-token.ts'

// The evidence of a delivery: what the server knows of it, signed with the key that signs deliveries. The signature is
// a JWS with detached content (RFC 7515, appendix F) over the document without it, in canonical form.

export const EVIDENCE_FORM = 'tidings-evidence-1'
/** The `typ` of its signature, so that it is none of a delivery, nor the other way round. */
export const EVIDENCE_TYPE = 'tidings-evidence+jws'

export interface EvidenceOfAttempt {
  number: number
  /** The webhook's URL at that time. */
  url: string
  startedAt: string
  durationMs: number | null
  statusCode: number | null
  failure: string | null
  failureDetail: string | null
  response: string | null
  retryAfter: string | null
  remoteAddress?: string
  httpVersion?: string
  phases?: Record<string, number>
  requestHeaders?: Record<string, string>
  responseHeaders?: Record<string, string>
  /** The `kid` of the key that signed its token. */
  keyId?: string
}

export interface EvidenceContent {
  form: typeof EVIDENCE_FORM
  issuer: string
  exportedAt: string
  delivery: {
    id: string
    webhookId: string
    eventId: string
    eventType: string
    status: string
    attemptCount: number
    createdAt: string
    finishedAt: string | null
  }
  request: { method: 'POST'; body: string }
  /** The last ones in order, if there are many. */
  attempts: EvidenceOfAttempt[]
  /** The public keys that signed the document and the attempts, as far as they are still published. */
  keys: Jwk[]
}

export interface DeliveryEvidence extends EvidenceContent {
  signature: string
}

/** JSON without white space, the members of objects in the order of their names: RFC 8785 of what JSON.parse reads. */
export const canonicalJson = (value: unknown): string => {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const members = Object.entries(value).filter(([, member]) => member !== undefined)
  // Code units, as `<` compares them.
  const sorted = members.sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${sorted.map(([name, member]) => `${JSON.stringify(name)}:${canonicalJson(member)}`).join(',')}}`
}

/** What is signed: the protected header and the content, as RFC 7515 has it. */
export const signingInput = (header: string, content: object): string =>
  `${header}.${Buffer.from(canonicalJson(content)).toString('base64url')}`
