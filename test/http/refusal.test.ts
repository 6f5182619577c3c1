import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { AccessToken } from '../../server/domain/permissions.ts'
import {
  bodyRefusalOf,
  CLOCK_WINDOW_MS,
  type Found,
  readSigned,
  refusalOf,
  type Signed,
} from '../../server/http/hmac.ts'
import { type RequestHeaders, signRequest } from '../../shared/hmac.ts'

// With a server around it: hmac.test.ts.

const now = Date.parse('2026-11-22T03:00:00Z')
const apiSecret = Buffer.alloc(32, 7).toString('base64')
const body = Buffer.from('{"query":"{ viewer { id } }"}')
const url = new URL('https://tidings.example/graphql?a=1')
const token: AccessToken = {
  id: 'an id',
  name: 'ci',
  apiKey: 'tk_1',
  permissions: ['read'],
  seesAllOrganisations: true,
  expiresAt: null,
  revokedAt: null,
  lastUsedAt: null,
  createdAt: 0,
}

const signed = (at = now): RequestHeaders =>
  signRequest({ method: 'POST', url, body, credentials: { apiKey: 'tk_1', apiSecret }, at: new Date(at) })
const read = (headers: RequestHeaders): Signed => {
  const found = readSigned(headers)
  assert.ok(!('reason' in found), 'is signed')
  return found
}
const reasonOf = ({
  headers = signed(),
  found = { token, apiSecret } as Found,
  at = now,
  ...given
}: {
  headers?: RequestHeaders
  found?: Found
  at?: number
  method?: string
  pathAndQuery?: string
} = {}) => {
  const covered = { method: 'POST', pathAndQuery: '/graphql?a=1', ...given }
  return refusalOf(covered, read(headers), found, at)?.reason
}

describe('a request is', () => {
  it('not refused when its signature is that of what has come', () => {
    assert.equal(reasonOf(), undefined)
    assert.equal(bodyRefusalOf(body, read(signed())), undefined)
  })

  it('refused when anything that the signature covers is another', () => {
    assert.equal(reasonOf({ method: 'GET' }), 'bad_signature')
    assert.equal(reasonOf({ pathAndQuery: '/graphql?a=2' }), 'bad_signature')
    assert.equal(reasonOf({ headers: { ...signed(), host: 'tidings.other' } }), 'bad_signature')
    assert.equal(bodyRefusalOf(Buffer.from('{}'), read(signed()))?.reason, 'body_hash_mismatch')
  })

  it('refused for its key before its signature, and for its signature before all that only the caller may know', () => {
    const other = Buffer.alloc(32).toString('base64')
    const ended = { ...token, revokedAt: 1, expiresAt: 1 }
    assert.equal(reasonOf({ found: { token: undefined, apiSecret } }), 'unknown_key')
    assert.equal(reasonOf({ found: { token: undefined, apiSecret: other } }), 'unknown_key')
    assert.equal(reasonOf({ found: { token: ended, apiSecret: other } }), 'bad_signature')
  })

  it('let in to the millisecond of the clock window, before and after', () => {
    assert.equal(reasonOf({ at: now + CLOCK_WINDOW_MS }), undefined)
    assert.equal(reasonOf({ at: now - CLOCK_WINDOW_MS }), undefined)
    assert.equal(reasonOf({ at: now + CLOCK_WINDOW_MS + 1 }), 'clock_skew')
    assert.equal(reasonOf({ at: now - CLOCK_WINDOW_MS - 1 }), 'clock_skew')
  })

  it('refused from the moment its token expires, and whenever it has been revoked', () => {
    assert.equal(reasonOf({ found: { token: { ...token, expiresAt: now + 1 }, apiSecret } }), undefined)
    assert.equal(reasonOf({ found: { token: { ...token, expiresAt: now }, apiSecret } }), 'expired')
    assert.equal(reasonOf({ found: { token: { ...token, expiresAt: now, revokedAt: now }, apiSecret } }), 'revoked')
  })

  it('refused before anything is looked up when it does not say how it is signed', () => {
    const { authorization: _, ...unsigned } = signed()
    assert.deepEqual(
      [unsigned, { ...signed(), authorization: 'Bearer abc' }, { ...signed(), 'x-date': 'yesterday' }].map(headers => {
        const answer = readSigned(headers)
        return 'reason' in answer && answer.reason
      }),
      ['missing', 'malformed', 'malformed'],
    )
  })
})
