import assert from 'node:assert/strict'
import { test } from 'node:test'
import { jwksUrl, remoteKeys } from '../../cli/verify/jwks.ts'
import { startIssuer } from './issuer.ts'

test('keys are fetched once, and again before they are five minutes old', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startIssuer()
  const keys = remoteKeys(jwksUrl(issuer.url))
  await keys(issuer.kid)
  t.mock.timers.tick(239_000)
  assert.deepEqual(await keys(issuer.kid), issuer.keys)
  assert.equal(issuer.fetches, 1)
  t.mock.timers.tick(2_000)
  // Not waited for: the keys that are known still serve.
  assert.deepEqual(await keys(issuer.kid), issuer.keys)
  while (issuer.fetches < 2) await new Promise(resolve => setTimeout(resolve, 5))
})

test('a key that is not known is looked for again, but not more often than every ten seconds', async t => {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const issuer = await startIssuer()
  const keys = remoteKeys(jwksUrl(issuer.url))
  await keys(issuer.kid)
  issuer.rotate()
  for (let i = 0; i < 5; i++) await keys(issuer.kid)
  assert.equal(issuer.fetches, 1)
  t.mock.timers.tick(11_000)
  assert.deepEqual(await keys(issuer.kid), issuer.keys)
  for (let i = 0; i < 5; i++) await keys('untrusted')
  assert.equal(issuer.fetches, 2)
})
