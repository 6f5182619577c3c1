import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { calculateJwkThumbprint } from 'jose'
import type { Check, Jwk } from '../../shared/delivery-token.ts'
import { parseIso } from '../../shared/time.ts'
import { usageError } from '../errors.ts'
import type { Attempt } from '../resources/timeline.ts'

export const EVIDENCE_FORM = 'tidings-evidence-1'

/** What `deliveries export` prints. */
export interface DeliveryEvidence {
  form: typeof EVIDENCE_FORM
  issuer: string
  exportedAt: string
  delivery: {
    id: string
    webhookId: string
    eventId: string
    eventType: string
    status: string
    createdAt: string
    finishedAt: string | null
  }
  request: { method: string; url: string | null; body: string }
  attempts: Attempt[]
  /** The public keys that signed the attempts. */
  keys: Jwk[]
}

export type EvidenceCheck = Omit<Check, 'name'> & { name: string }

/** Reads a file. Throws a CliError, exit code 2, for what is no evidence. */
export const readEvidence = (path: string): DeliveryEvidence => {
  try {
    const read = JSON.parse(readFileSync(path === '-' ? 0 : path, 'utf8')) as DeliveryEvidence
    if (read.form === EVIDENCE_FORM && Array.isArray(read.attempts) && typeof read.request.body === 'string')
      return read
  } catch (error) {
    throw usageError(`The evidence cannot be read: ${(error as Error).message}.`, 'Give a file of deliveries export.')
  }
  throw usageError('The file is no evidence of a delivery.', 'Give a file that deliveries export has printed.')
}

/**
 * Checks that a document agrees with itself and with the issuer's keys, without a connection: the body is the one of
 * whose digest each request told, it is of this delivery, each key has the name that its thumbprint gives it, and the
 * times are in order.
 *
 * @param trusted the issuer's keys, if they are known from elsewhere
 */
export const checkEvidence = async (
  { delivery, request, attempts, keys }: DeliveryEvidence,
  trusted: readonly Jwk[] | undefined,
): Promise<EvidenceCheck[]> => [
  digestCheck(request.body, attempts),
  bodyCheck(request.body, delivery),
  await keyCheck(attempts, keys),
  trustCheck(attempts, keys, trusted),
  timeCheck(delivery, attempts),
]

const check = (name: string, isRight: boolean, expected: string, found: string, advice?: string): EvidenceCheck =>
  isRight
    ? ({ name, status: 'passed', found: expected } as EvidenceCheck)
    : ({ name, status: 'failed', expected, found, ...(advice && { advice }) } as EvidenceCheck)
const skipped = (name: string, advice: string): EvidenceCheck => ({ name, status: 'skipped', advice }) as EvidenceCheck

const digestCheck = (body: string, attempts: Attempt[]): EvidenceCheck => {
  const told = [...new Set(attempts.flatMap(({ requestHeaders }) => requestHeaders?.['content-digest'] ?? []))]
  if (told.length === 0) return skipped('digest', 'No request was sent, or none that told of its digest.')
  const expected = `sha-256=:${createHash('sha256').update(body).digest('base64')}:`
  return check(
    'digest',
    told.every(each => each === expected),
    expected,
    told.join(', '),
    'The body was changed.',
  )
}

const bodyCheck = (body: string, { id, webhookId, eventType }: DeliveryEvidence['delivery']): EvidenceCheck => {
  const expected = [id, webhookId, eventType].join(' ')
  return check('body', bodyOf(body) === expected, expected, bodyOf(body), 'The body is of another delivery.')
}

const bodyOf = (body: string): string => {
  try {
    const { eventId, webhookId, eventType } = JSON.parse(body)
    return [eventId, webhookId, eventType].join(' ')
  } catch {
    return 'no JSON'
  }
}

const kidsOf = (attempts: Attempt[]): string[] => [...new Set(attempts.flatMap(({ keyId }) => (keyId ? [keyId] : [])))]

/** RFC 7638: the name of a key is its thumbprint, so that no other key can have it. */
const keyCheck = async (attempts: Attempt[], keys: Jwk[]): Promise<EvidenceCheck> => {
  const kids = kidsOf(attempts)
  if (kids.length === 0) return skipped('keys', 'No attempt names the key that signed it.')
  const thumbprints = await Promise.all(keys.map(key => calculateJwkThumbprint(key as never).catch(() => 'no key')))
  const missing = kids.filter(kid => !thumbprints.includes(kid))
  return check('keys', missing.length === 0, kids.join(', '), thumbprints.join(', ') || 'none', 'A key is missing.')
}

const trustCheck = (attempts: Attempt[], keys: Jwk[], trusted: readonly Jwk[] | undefined): EvidenceCheck => {
  if (trusted === undefined) return skipped('issuer', 'Give the issuer’s own keys with --jwks FILE.')
  const kids = kidsOf(attempts)
  const known = kids.filter(kid => {
    const [ours, theirs] = [keys, trusted].map(list => list.find(key => key.kid === kid))
    return ours !== undefined && theirs !== undefined && ours.x === theirs.x
  })
  return check(
    'issuer',
    known.length === kids.length,
    kids.join(', '),
    known.join(', ') || 'none',
    'The issuer has no such key.',
  )
}

const timeCheck = ({ createdAt, finishedAt }: DeliveryEvidence['delivery'], attempts: Attempt[]): EvidenceCheck => {
  const times = [createdAt, ...attempts.map(({ startedAt }) => startedAt), ...(finishedAt ? [finishedAt] : [])]
  const numbers = times.map(time => parseIso(time) ?? Number.NaN)
  // Attempts begin in processes whose clocks differ a little from the database's.
  const inOrder = numbers.every((ms, index) => index === 0 || ms >= numbers[index - 1]! - CLOCKS_APART_MS)
  return check('times', inOrder, 'in order', times.join(', '), 'A time was changed.')
}

const CLOCKS_APART_MS = 1_000
