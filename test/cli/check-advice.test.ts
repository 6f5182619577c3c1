import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withAdvice } from '../../cli/verify/check-advice.ts'
import { readToken } from '../../cli/verify/token-source.ts'
import { type CheckName, type Jwk, verifyDeliveryToken } from '../../shared/delivery-token.ts'

// The advice for tokens that Tidings did not make.

const at = new Date('2026-11-21T00:40:01Z')
const now = at.getTime() / 1000
const keys: Jwk[] = [
  { kty: 'OKP', crv: 'Ed25519', x: Buffer.alloc(32, 9).toString('base64url'), kid: 'one' },
  { kty: 'RSA', n: 'AQAB', e: 'AQAB', kid: 'rsa' },
]
const encoded = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
const token = (claims: object = {}, header: object = {}): string => {
  const all = { iss: 'https://t.example', aud: 'https://e.example', jti: 'j', iat: now, exp: now + 300, ...claims }
  const signature = Buffer.alloc(64, 1).toString('base64url')
  return `${encoded({ alg: 'EdDSA', kid: 'one', ...header })}.${encoded(all)}.${signature}`
}

const adviceOn = async (name: CheckName, argument: string, published = keys): Promise<string> => {
  const given = await readToken({ argument })
  const verification = await verifyDeliveryToken(given.token, { keys: published, at })
  const circumstances = { keySource: 'jwks.json', issuer: undefined, issuerAssumed: false, audience: undefined, at }
  const checks = await withAdvice(verification, { token: given.token, ...circumstances })
  const check = checks.find(each => each.name === name)!
  assert.equal(check.status, 'failed', name)
  return `${check.found}; ${check.advice}`
}

const cases: [what: string, name: CheckName, token: string, advice: RegExp][] = [
  ['an nbf ahead', 'issued_at', token({ nbf: now + 600 }), /have no nbf; .* for another 10 min: .*reject it/],
  ['an nbf that is no number', 'issued_at', token({ nbf: 'soon' }), /nbf is a text; it is a number of seconds/],
  ['no exp', 'expiry', token({ exp: undefined }), /There is no exp, which every delivery token has/],
  ['an exp that is a text', 'expiry', token({ exp: String(now) }), /exp is a text; it is a number of seconds/],
  ['an exp in milliseconds', 'expiry', token({ exp: (now + 300) * 1000 }), /exp looks like milliseconds/],
  ['no iat', 'issued_at', token({ iat: undefined }), /There is no iat/],
  ['an iat that is a list', 'issued_at', token({ iat: [] }), /iat is no number/],
  ['an iat in milliseconds', 'issued_at', token({ iat: now * 1000 }), /iat looks like milliseconds/],
  ['a kid that names an RSA key', 'key', token({}, { kid: 'rsa' }), /RSA.*; The kid names a key of another kind in/],
  ['no kid', 'key', token({}, { kid: undefined }), /The header has no kid\. .*reject it/],
  ['quotes', 'format', `"${token()}"`, /quotes in it/],
  ['a line break', 'format', `${token().slice(0, 80)}\n${token().slice(80)}`, /line breaks in it/],
  [
    'a line break behind Bearer',
    'format',
    `Authorization: Bearer ${token().slice(0, 80)}\n  ${token().slice(80)}\n`,
    /line breaks in it/,
  ],
  [
    'an API signature',
    'format',
    'Authorization: HMAC-SHA256 Credential=tk_1&SignedHeaders=host&Signature=c2VjcmV0',
    /^an API signature, HMAC-SHA256 …; .*“Authorization: Bearer …”/,
  ],
  ['a password', 'format', 'Basic dXNlcjpodW50ZXIy', /^credentials, Basic …; /],
]

for (const [what, name, given, advice] of cases) {
  test(`${what} is told as what it is`, async () => {
    const told = await adviceOn(name, given)
    assert.match(told, advice)
    assert.doesNotMatch(told, /c2VjcmV0|dXNlcjpodW|clock/)
  })
}

test('an empty key set is told as such', async () => {
  assert.match(await adviceOn('key', token(), []), /There is no key in jwks\.json/)
})

test('what follows a whole token in a log is no part of it', async () => {
  const { token: read } = await readToken({ argument: `Authorization: Bearer ${token()}\nabc\n` })
  assert.equal(read, token())
})
