import { createHash } from 'node:crypto'
import {
  keyOfSecret,
  STANDARD_TOLERANCE_SECONDS,
  standardHeaders,
  standardSignature,
} from '../../shared/standard-webhooks.ts'
import { safeJson } from '../output/neutralise.ts'

/** One check of Standard Webhooks, as the checks of a token are. */
export interface StandardCheck {
  name: 'webhook_id' | 'webhook_timestamp' | 'webhook_signature'
  status: 'passed' | 'failed' | 'skipped'
  expected?: string
  found?: string
  advice?: string
}

const NAMES = [...standardHeaders, 'content-digest'] as const

/** The headers of Standard Webhooks, and the body's digest, which tells why a signature fails; undefined if missing. */
export type StandardHeaders = Record<(typeof NAMES)[number], string | undefined>

export const standardOf = (header: (name: string) => string | undefined): StandardHeaders =>
  Object.fromEntries(NAMES.map(name => [name, header(name)])) as StandardHeaders

/**
 * Checks the signatures of a request by Standard Webhooks, without a connection.
 *
 * @param given.body the bytes as they came; undefined if they are not known
 * @param given.secrets any of them may have signed it
 */
export const checkStandard = (
  headers: StandardHeaders,
  given: { body: string | undefined; secrets: readonly string[]; atMs: number },
): StandardCheck[] => [
  checkId(headers['webhook-id'], given.body),
  checkTimestamp(headers['webhook-timestamp'], given.atMs),
  checkSignature(headers, given),
]

const NOT_SIGNED =
  'The webhook is not signed so: tidings webhooks update ID --signing standard. Or a gateway took it away.'

const missing = (name: StandardCheck['name'], header: string): StandardCheck => ({
  name,
  status: 'failed',
  expected: `the header ${header}`,
  found: 'none',
  advice: NOT_SIGNED,
})

const checkId = (id: string | undefined, body: string | undefined): StandardCheck => {
  const name = 'webhook_id'
  if (id === undefined) return missing(name, 'webhook-id')
  const eventId = eventIdOf(body)
  if (eventId === undefined || eventId === id) return { name, status: 'passed', found: shown(id) }
  const advice = 'It is the eventId of the body: header and body are of different deliveries.'
  return { name, status: 'failed', expected: shown(eventId), found: shown(id), advice }
}

const eventIdOf = (body: string | undefined): string | undefined => {
  try {
    const { eventId } = JSON.parse(body ?? '')
    return typeof eventId === 'string' ? eventId : undefined
  } catch {
    return undefined
  }
}

const checkTimestamp = (text: string | undefined, atMs: number): StandardCheck => {
  const name = 'webhook_timestamp'
  if (text === undefined) return missing(name, 'webhook-timestamp')
  if (!/^\d{1,12}$/.test(text)) {
    return { name, status: 'failed', expected: 'seconds since 1970', found: shown(text) }
  }
  const apart = Math.round(atMs / 1000) - Number(text)
  const found = `${text}, ${Math.abs(apart)} s ${apart < 0 ? 'ahead' : 'ago'}`
  if (Math.abs(apart) <= STANDARD_TOLERANCE_SECONDS) return { name, status: 'passed', found }
  const expected = `at most ${STANDARD_TOLERANCE_SECONDS} s from now`
  const advice = 'Check it at the time it was received: --at. Every attempt has a new one, so a retry is not late.'
  return { name, status: 'failed', expected, found, advice }
}

const checkSignature = (
  headers: StandardHeaders,
  { body, secrets }: { body: string | undefined; secrets: readonly string[] },
): StandardCheck => {
  const name = 'webhook_signature'
  const signature = headers['webhook-signature']
  if (signature === undefined) return missing(name, 'webhook-signature')
  const given = signature.split(' ').filter(part => part !== '')
  if (body === undefined) {
    return { name, status: 'skipped', advice: 'The body is not known byte for byte: tidings listen --save keeps it.' }
  }
  const content = { id: headers['webhook-id'] ?? '', timestampSeconds: headers['webhook-timestamp'] ?? '', body }
  const expected = secrets.map(secret => standardSignature(keyOfSecret(secret)!, content))
  const position = given.findIndex(one => expected.includes(one))
  const ofMany = given.length === 1 ? '' : `, the ${ordinal(position)} of ${given.length}`
  if (position !== -1) return { name, status: 'passed', found: `${shown(given[position]!)}${ofMany}` }
  return {
    name,
    status: 'failed',
    expected: expected.join(' or '),
    found: given.length === 0 ? 'none' : shown(given.join(' ')),
    advice: given.some(one => one.startsWith('v1,'))
      ? adviceOn(body, headers['content-digest'])
      : 'Tidings signs with v1 (HMAC-SHA256): the request comes from another sender.',
  }
}

const OTHER_SECRET = 'that of another webhook, or one from before or after a rotation.'
const CHANGED = 'the bytes as they came are signed, not JSON that was parsed and written again.'

/** What is wrong where no signature fits. The digest (RFC 9530) is no proof, but shows which of the two it is. */
const adviceOn = (body: string, digest: string | undefined): string => {
  const given = /sha-256=:([^:]+):/.exec(digest ?? '')?.[1]
  if (given === undefined) return `It is signed by another secret: ${OTHER_SECRET} Or the body was changed: ${CHANGED}`
  return given === createHash('sha256').update(body).digest('base64')
    ? `It is signed by another secret: ${OTHER_SECRET} The body is as it was sent: its Content-Digest fits.`
    : `The body was changed on the way, since its Content-Digest is another: ${CHANGED}`
}

const ordinal = (index: number): string => ['first', 'second', 'third', 'fourth', 'fifth'][index] ?? `${index + 1}th`

const LONGEST = 300
const shown = (text: string): string => {
  const brief = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text
  return safeJson(brief).slice(1, -1)
}
