import { createHash, createPublicKey, verify } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { calculateJwkThumbprint } from 'jose'
import type { Check, Jwk } from '../../shared/delivery-token.ts'
import {
  type DeliveryEvidence,
  EVIDENCE_FORM,
  EVIDENCE_TYPE,
  type EvidenceOfAttempt,
  signingInput,
} from '../../shared/evidence.ts'
import { parseIso } from '../../shared/time.ts'
import { usageError } from '../errors.ts'

export type EvidenceCheck = Omit<Check, 'name'> & { name: string }

/** Reads a file. Throws a CliError, exit code 2, for what is no evidence. */
export const readEvidence = (path: string): DeliveryEvidence => {
  try {
    const read = JSON.parse(readFileSync(path === '-' ? 0 : path, 'utf8')) as DeliveryEvidence
    if (read.form === EVIDENCE_FORM && hasParts(read)) return read
  } catch (error) {
    throw usageError(`The evidence cannot be read: ${(error as Error).message}.`, 'Give a file of deliveries export.')
  }
  throw usageError('The file is no evidence of a delivery.', 'Give a file that deliveries export has printed.')
}

const hasParts = ({ attempts, keys, request, delivery, signature }: DeliveryEvidence): boolean =>
  [attempts, keys].every(
    list => Array.isArray(list) && list.every(each => typeof each === 'object' && each !== null),
  ) && [request.body, delivery.id, signature].every(text => typeof text === 'string')

/**
 * Checks a document without a connection: the signature is of the whole of it, by a key whose name is its thumbprint;
 * and it agrees with itself: the body is the one of whose digest each request names, it is of this delivery, and the
 * times are in order.
 *
 * @param trusted the issuer's keys, if they are known from elsewhere: without them the signature may be anybody's
 */
export const checkEvidence = async (
  evidence: DeliveryEvidence,
  trusted: readonly Jwk[] | undefined,
): Promise<EvidenceCheck[]> => {
  const { delivery, request, attempts, keys } = evidence
  const kid = headerOf(evidence.signature)?.kid
  return [
    signatureCheck(evidence, kid),
    digestCheck(request.body, attempts),
    bodyCheck(request.body, delivery),
    await keyCheck(keys),
    trustCheck(kid, keys, trusted),
    timeCheck(delivery, attempts),
  ]
}

/** The protected header of a JWS with detached content; undefined if it is none of evidence. */
const headerOf = (signature: string): { kid: string } | undefined => {
  const [header, content] = signature.split('.')
  try {
    const { alg, kid, typ } = JSON.parse(Buffer.from(header!, 'base64url').toString())
    return content === '' && alg === 'EdDSA' && typ === EVIDENCE_TYPE && typeof kid === 'string' ? { kid } : undefined
  } catch {
    return undefined
  }
}

const signatureCheck = ({ signature, ...content }: DeliveryEvidence, kid: string | undefined): EvidenceCheck => {
  const [header = '', , signed = ''] = signature.split('.')
  const key = content.keys.find(each => each.kid === kid)
  const expected = `a signature by key ${kid}`
  if (kid === undefined || key === undefined) return check('signature', false, 'a key of the document', 'none', CHANGED)
  return check('signature', isSigned(key, signingInput(header, content), signed), expected, 'another', CHANGED)
}

const CHANGED = 'The document was changed since it was exported.'

const isSigned = (key: Jwk, input: string, signature: string): boolean => {
  try {
    const publicKey = createPublicKey({ key: { kty: key.kty, crv: key.crv, x: key.x } as never, format: 'jwk' })
    return verify(null, Buffer.from(input), publicKey, Buffer.from(signature, 'base64url'))
  } catch {
    return false
  }
}

const check = (name: string, isRight: boolean, expected: string, found: string, advice?: string): EvidenceCheck =>
  isRight
    ? ({ name, status: 'passed', found: expected } as EvidenceCheck)
    : ({ name, status: 'failed', expected, found, ...(advice && { advice }) } as EvidenceCheck)
const skipped = (name: string, advice: string): EvidenceCheck => ({ name, status: 'skipped', advice }) as EvidenceCheck

const digestCheck = (body: string, attempts: EvidenceOfAttempt[]): EvidenceCheck => {
  const digests = [...new Set(attempts.flatMap(({ requestHeaders }) => requestHeaders?.['content-digest'] ?? []))]
  if (digests.length === 0) return skipped('digest', 'No request was sent, or none that named its digest.')
  const expected = `sha-256=:${createHash('sha256').update(body).digest('base64')}:`
  return check(
    'digest',
    digests.every(each => each === expected),
    expected,
    digests.join(', '),
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

/** RFC 7638: the name of a key is its thumbprint, so that no other key can have it. */
const keyCheck = async (keys: Jwk[]): Promise<EvidenceCheck> => {
  const thumbprints = await Promise.all(keys.map(key => calculateJwkThumbprint(key as never).catch(() => 'no key')))
  const isRight = keys.every(({ kid }, index) => kid === thumbprints[index])
  return check(
    'keys',
    isRight,
    keys.map(({ kid }) => kid).join(', '),
    thumbprints.join(', ') || 'none',
    'A key was changed.',
  )
}

const trustCheck = (kid: string | undefined, keys: Jwk[], trusted: readonly Jwk[] | undefined): EvidenceCheck => {
  if (trusted === undefined) return skipped('issuer', 'Give the issuer’s own keys with --jwks FILE.')
  const [own, theirs] = [keys, trusted].map(list => list.find(key => key.kid === kid))
  const isKnown = own !== undefined && theirs !== undefined && own.x === theirs.x
  const known = trusted.map(key => key.kid).join(', ')
  return check(
    'issuer',
    isKnown,
    `the key ${kid}`,
    known || 'none',
    'The issuer has no such key, or had it at another time.',
  )
}

const timeCheck = (
  { createdAt, finishedAt }: DeliveryEvidence['delivery'],
  attempts: EvidenceOfAttempt[],
): EvidenceCheck => {
  const times = [createdAt, ...attempts.map(({ startedAt }) => startedAt), ...(finishedAt ? [finishedAt] : [])]
  const numbers = times.map(time => parseIso(time) ?? Number.NaN)
  // Attempts begin in processes whose clocks differ a little from the database's.
  const inOrder = numbers.every((ms, index) => index === 0 || ms >= numbers[index - 1]! - CLOCKS_APART_MS)
  return check('times', inOrder, 'in order', times.join(', '), 'A time was changed.')
}

const CLOCKS_APART_MS = 1_000
