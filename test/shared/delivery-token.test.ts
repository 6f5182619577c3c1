import assert from 'node:assert/strict'
import {
  createHash,
  createHmac,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  sign,
  verify,
} from 'node:crypto'
import { describe, it } from 'node:test'
import fc from 'fast-check'
import { createLocalJWKSet, jwtVerify } from 'jose'
import { type CheckName, type Jwk, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { signDeliveryToken } from '../../shared/sign-delivery-token.ts'

// The key of RFC 8037 appendix A.1.
const key = createPrivateKey({
  format: 'jwk',
  key: {
    kty: 'OKP',
    crv: 'Ed25519',
    d: 'nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A',
    x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo',
  },
})
const kid = 'kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k'
const publicJwk = { ...createPublicKey(key).export({ format: 'jwk' }), kid, use: 'sig', alg: 'EdDSA' } as Jwk
const otherKey = generateKeyPairSync('ed25519').privateKey

const issuer = 'https://tidings.example'
const audience = 'https://receiver.example/hooks/1'
const jti = '0198a111-1111-7000-8000-000000000001'
const issuedAtSeconds = 1_795_221_601
const at = new Date(issuedAtSeconds * 1000 + 500)
const body = JSON.stringify({
  webhookId: '0198a111-1111-7000-8000-000000000003',
  eventId: jti,
  eventType: 'ping',
  payload: {},
})

const sub = '0198a111-1111-7000-8000-000000000002'
const webhookId = '0198a111-1111-7000-8000-000000000003'
const token = await signDeliveryToken({
  key,
  kid,
  issuer,
  audience,
  jti,
  sub,
  bodySha256: createHash('sha256').update(body).digest('base64url'),
  issuedAtSeconds,
})
const given = { keys: [publicJwk], issuer, audience, at, body, webhookIds: [webhookId], seen: () => false }

const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
const header = { alg: 'EdDSA', kid, typ: 'JWT' }
const claims = {
  iss: issuer,
  aud: audience,
  sub,
  jti,
  iat: issuedAtSeconds,
  exp: issuedAtSeconds + 300,
  body_sha256: createHash('sha256').update(body).digest('base64url'),
}
/** A token as the sender would sign it, with whatever it is to hold. */
const signed = (head: unknown, content: unknown, by: KeyObject = key) => {
  const input = `${encode(head)}.${encode(content)}`
  return `${input}.${sign(null, Buffer.from(input), by).toString('base64url')}`
}

const statuses = async (it: string, options: Parameters<typeof verifyDeliveryToken>[1] = given) => {
  const { checks } = await verifyDeliveryToken(it, options)
  return Object.fromEntries(checks.map(check => [check.name, check.status])) as Record<CheckName, string>
}

const ALL: CheckName[] = [
  'format',
  'algorithm',
  'key',
  'signature',
  'issuer',
  'audience',
  'expiry',
  'jti',
  'body_digest',
  'webhook',
  'replay',
  'issued_at',
]

describe('a delivery token', () => {
  it('has exactly the header and the claims that are promised', () => {
    const [head, content] = token.split('.').map(part => Buffer.from(part, 'base64url').toString())
    assert.deepEqual(JSON.parse(head!), header)
    assert.deepEqual(JSON.parse(content!), claims)
  })

  it('is accepted by a JOSE library that has only the published keys', async () => {
    const { payload } = await jwtVerify(token, createLocalJWKSet({ keys: [publicJwk] }), {
      algorithms: ['EdDSA'],
      issuer,
      audience,
      typ: 'JWT',
      currentDate: at,
    })
    assert.equal(payload.jti, jti)
  })

  it('is a plain Ed25519 signature over its first two parts', () => {
    const [head, content, signature] = token.split('.')
    const input = Buffer.from(`${head}.${content}`)
    assert.equal(verify(null, input, createPublicKey(key), Buffer.from(signature!, 'base64url')), true)
  })

  it('passes every check, in the specification’s order', async () => {
    const result = await verifyDeliveryToken(token, given)
    assert.equal(result.ok, true)
    assert.deepEqual(
      result.checks.map(({ name, status }) => [name, status]),
      ALL.map(name => [name, 'passed']),
    )
    assert.deepEqual(result.header, header)
    assert.deepEqual(result.claims, claims)
  })

  it('is verified by the key that its kid names, among several', async () => {
    const other = { ...createPublicKey(otherKey).export({ format: 'jwk' }), kid: 'other' } as Jwk
    assert.equal((await verifyDeliveryToken(token, { ...given, keys: [other, publicJwk] })).ok, true)
  })

  it('shows as skipped what it could not be compared with', async () => {
    const { ok, checks } = await verifyDeliveryToken(token, { keys: [publicJwk], at })
    assert.equal(ok, true)
    assert.deepEqual(
      checks.filter(({ status }) => status === 'skipped').map(({ name }) => name),
      ['issuer', 'audience', 'jti', 'body_digest', 'webhook', 'replay'],
    )
  })
})

describe('a broken delivery token', () => {
  const broken: [string, string, CheckName[], Partial<typeof given>?][] = [
    ['signed with another key', signed(header, claims, otherKey), ['signature']],
    [
      'whose claims were changed',
      token.replace(/\.[^.]+\./, `.${encode({ ...claims, aud: 'https://x.example' })}.`),
      ['signature', 'audience'],
    ],
    ['whose signature lost its end', token.slice(0, -4), ['signature']],
    ['without algorithm', `${encode({ ...header, alg: 'none' })}.${encode(claims)}.`, ['algorithm']],
    ['with "none" and a signature', signed({ ...header, alg: 'none' }, claims), ['algorithm']],
    ['signed by HMAC with the public key', hmacSigned(), ['algorithm']],
    ['with an unknown kid', signed({ ...header, kid: 'nobody' }, claims), ['key']],
    ['without kid', signed({ alg: 'EdDSA', typ: 'JWT' }, claims), ['key']],
    [
      'with a key of its own in the header',
      signed({ ...header, kid: 'own', jwk: createPublicKey(otherKey).export({ format: 'jwk' }) }, claims, otherKey),
      ['key'],
    ],
    ['with a critical extension', signed({ ...header, crit: ['b64'], b64: false }, claims), ['format']],
    ['from another issuer', signed(header, { ...claims, iss: 'https://evil.example' }), ['issuer']],
    ['without issuer', signed(header, { ...claims, iss: undefined }), ['issuer']],
    ['for another endpoint', signed(header, { ...claims, aud: 'https://other.example/' }), ['audience']],
    ['for a list of endpoints', signed(header, { ...claims, aud: [audience] }), ['audience']],
    ['that has expired', token, ['expiry'], { at: new Date((issuedAtSeconds + 300) * 1000) }],
    ['without expiry', signed(header, { ...claims, exp: undefined }), ['expiry']],
    ['whose expiry is a text', signed(header, { ...claims, exp: '2099' }), ['expiry']],
    ['that lives longer than 5 minutes', signed(header, { ...claims, exp: claims.iat + 301 }), ['expiry']],
    ['of another event', token, ['jti', 'body_digest'], { body: body.replace(jti, 'another') }],
    ['with a body that is no JSON', token, ['jti', 'body_digest', 'webhook'], { body: 'oops' }],
    ['of another’s webhook', token, ['webhook'], { webhookIds: ['0198a111-1111-7000-8000-00000000000b'] }],
    ['whose body was changed by one character', token, ['body_digest'], { body: `${body} ` }],
    ['whose digest is a number', signed(header, { ...claims, body_sha256: 1 }), ['body_digest']],
    ['without jti', signed(header, { ...claims, jti: undefined }), ['jti']],
    ['that was handled before', token, ['replay'], { seen: () => true }],
    ['from the future', signed(header, { ...claims, iat: claims.iat + 62, exp: claims.iat + 300 }), ['issued_at']],
    ['without time of issue', signed(header, { ...claims, iat: undefined }), ['issued_at']],
    ['whose time of issue is beyond all calendars', signed(header, { ...claims, iat: 1e300 }), ['issued_at']],
    ['in two parts', token.split('.').slice(0, 2).join('.'), ['format']],
    ['with "Bearer" before it', `Bearer ${token}`, ['format']],
    ['that is empty', '', ['format']],
    ['whose header is a list', signed([header], claims), ['format']],
    ['whose claims are null', signed(header, null), ['format']],
    [
      'whose claims are no UTF-8',
      `${encode(header)}.${Buffer.from([0x7b, 0xff, 0x7d]).toString('base64url')}.AA`,
      ['format'],
    ],
    ['in plain base64', token.replaceAll('.', '+.'), ['format']],
    ['that is huge', `${'A'.repeat(20_000)}.A.A`, ['format']],
    [
      'nested deeply',
      `${Buffer.from(`{"kid":${'['.repeat(5000)}${']'.repeat(5000)}}`).toString('base64url')}.e30.AA`,
      ['algorithm', 'key', 'expiry', 'jti', 'issued_at', 'issuer', 'audience'],
    ],
  ]
  for (const [what, text, failing, options] of broken) {
    it(`${what} is refused for ${failing.join(' and ')} alone`, async () => {
      const result = await verifyDeliveryToken(text, { ...given, ...options })
      assert.equal(result.ok, false)
      const failed = result.checks.filter(({ status }) => status === 'failed').map(({ name }) => name)
      assert.deepEqual(failed.sort(), [...failing].sort())
      assert.deepEqual(
        result.checks.map(({ name }) => name),
        ALL,
      )
    })
  }

  it('is not said to be signed well, nor badly, where the signature could not be checked', async () => {
    assert.equal((await statuses(signed({ ...header, alg: 'none' }, claims))).signature, 'skipped')
  })

  it('says when an address is only spelled differently', async () => {
    const { checks } = await verifyDeliveryToken(token, { ...given, audience: `${audience}/` })
    assert.match(checks.find(({ name }) => name === 'audience')!.advice!, /spelled differently/)
  })

  it('shows nothing that could steer a terminal', async () => {
    const { checks } = await verifyDeliveryToken(signed({ ...header, kid: '\u001b[2J\u009b31m\u202e' }, claims), given)
    assert.doesNotMatch(checks.map(({ found }) => found).join(''), /[\p{Cc}\p{Cf}]/u)
  })
})

describe('verifying', () => {
  const unusable: [string, unknown[]][] = [
    ['none at all', []],
    ['things that are no keys', [null, 1, 'x', []]],
    ['a key of another kind under the same kid', [{ kty: 'RSA', n: 'AQAB', e: 'AQAB', kid }]],
    ['a key that is cut', [{ ...publicJwk, x: 'AAAA' }]],
    ['a key without its value', [{ kty: 'OKP', crv: 'Ed25519', kid }]],
  ]
  for (const [what, keys] of unusable) {
    it(`with ${what} as keys refuses, and does not throw`, async () => {
      assert.equal((await verifyDeliveryToken(token, { ...given, keys: keys as Jwk[] })).ok, false)
    })
  }

  it('is not misled by what a published key says of its use', async () => {
    const keys = [{ ...publicJwk, alg: 'ES256', key_ops: ['encrypt'] } as Jwk]
    assert.equal((await verifyDeliveryToken(token, { ...given, keys })).ok, true)
  })

  it('never throws, and never accepts, whatever header and claims hold', async () => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), fc.jsonValue(), fc.string(), async (head, content, tail) => {
        const forged = `${encode(head)}.${encode(content)}.${Buffer.from(tail).toString('base64url')}`
        const result = await verifyDeliveryToken(forged, given)
        return result.ok === false && result.checks.length === ALL.length
      }),
      { numRuns: 300 },
    )
  })

  it('accepts no token of which one character was changed', async () => {
    for (let index = 0; index < token.length; index++) {
      const changed = `${token.slice(0, index)}${token[index] === 'A' ? 'g' : 'A'}${token.slice(index + 1)}`
      assert.equal((await verifyDeliveryToken(changed, given)).ok, false, `at ${index}`)
    }
  })
})

function hmacSigned(): string {
  const input = `${encode({ ...header, alg: 'HS256' })}.${encode(claims)}`
  return `${input}.${createHmac('sha256', publicJwk.x as string)
    .update(input)
    .digest('base64url')}`
}
