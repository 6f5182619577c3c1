import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { kidOf } from '../../cli/verify/jwks.ts'
import { jwksUrl, remoteKeys } from '../../receiver/keys.ts'
import { startIssuer } from '../cli/issuer.ts'

/** An issuer that may be away. */
const startKeys = async () => {
  const served = {
    status: 200,
    body: JSON.stringify({ keys: [{ kty: 'OKP', crv: 'Ed25519', x: 'A'.repeat(43), kid: 'one' }] }),
  }
  const state = { ...served, requests: 0, url: '', away: () => {}, back: () => {} }
  const server = createServer((_request, response) => {
    state.requests += 1
    response.writeHead(state.status, { location: '/elsewhere' }).end(state.body)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  after(() => server.close().closeAllConnections())
  state.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`
  state.away = () => {
    state.status = 503
  }
  state.back = () => {
    state.status = 200
  }
  return state
}

test('many tokens at once cause one request', async () => {
  const issuer = await startIssuer()
  const keys = remoteKeys(jwksUrl(issuer.url))
  await Promise.all(Array.from({ length: 50 }, () => keys(issuer.kid)))
  assert.equal(issuer.fetches, 1)
})

test('tokens without a readable kid cause no request beyond the first', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startIssuer()
  const keys = remoteKeys(jwksUrl(issuer.url))
  await keys(undefined)
  t.mock.timers.tick(20_000)
  await keys(undefined)
  assert.equal(issuer.fetches, 1)
})

test('keys that are known go on serving for an hour while the issuer is away', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startKeys()
  const keys = remoteKeys(issuer.url)
  await keys('one')
  issuer.away()
  t.mock.timers.tick(3_600_000)
  assert.equal((await keys('one')).length, 1)
  t.mock.timers.tick(10_001)
  await assert.rejects(keys('one'), /could not be had/)
  issuer.back()
  t.mock.timers.tick(10_001)
  assert.equal((await keys('one')).length, 1)
})

test('a kid that is not known while the issuer is away is not taken for an untrusted one', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startKeys()
  const keys = remoteKeys(issuer.url)
  await keys('one')
  issuer.away()
  t.mock.timers.tick(11_000)
  await assert.rejects(keys('two'), /could not be had/)
})

test('an issuer that is away is asked every ten seconds at most', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startKeys()
  issuer.away()
  const keys = remoteKeys(issuer.url)
  for (let i = 0; i < 5; i++) await assert.rejects(keys('one'))
  assert.equal(issuer.requests, 1)
  t.mock.timers.tick(10_000)
  await assert.rejects(keys('one'))
  assert.equal(issuer.requests, 2)
})

for (const [what, status, body] of [
  ['a page', 200, '<html>'],
  ['a key instead of a set', 200, '{"kty":"OKP"}'],
  ['a redirect', 302, '{"keys":[]}'],
] as const) {
  test(`${what} in place of the keys is told with the URL`, async () => {
    const issuer = await startKeys()
    Object.assign(issuer, { status, body })
    await assert.rejects(remoteKeys(issuer.url)('one'), new RegExp(`keys at ${issuer.url} could not be had: .`))
    assert.equal(issuer.requests, 1)
  })
}

test('an issuer’s address may end in a slash', () => {
  assert.equal(jwksUrl('https://tidings.example/'), 'https://tidings.example/.well-known/jwks.json')
})

test('the kid of what is no token is none', () => {
  for (const token of ['', 'x', 'a.b.c', `${Buffer.from('{"kid":7}').toString('base64url')}.e30.AA`]) {
    assert.equal(kidOf(token), undefined)
  }
})
