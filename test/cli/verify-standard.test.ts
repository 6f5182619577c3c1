import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { keyOfSecret, newStandardSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const secret = newStandardSecret()
const at = '2026-11-21T00:40:01Z'
const timestampSeconds = Date.parse(at) / 1000
const id = '01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12'
const body = JSON.stringify({ eventId: id, eventType: 'ping', payload: {} })

const file = (name: string, text: string): string => {
  const path = join(home, name)
  writeFileSync(path, text)
  return path
}
const signatureBy = (by: string) => standardSignature(keyOfSecret(by)!, { id, timestampSeconds, body })
const digest = createHash('sha256').update(body).digest('base64')
const requestOf = (signature: string, sent = body): string =>
  file(
    'request.http',
    `POST https://example.com/hooks HTTP/1.1\r\nwebhook-id: ${id}\r\nwebhook-timestamp: ${timestampSeconds}\r\n` +
      `webhook-signature: ${signature}\r\nContent-Digest: sha-256=:${digest}:\r\n\r\n${sent}`,
  )
const verify = (request: string, secrets: string, ...more: string[]) =>
  tidings(['verify', '--request', request, '--secret-file', file('secrets.txt', secrets), '--at', at, ...more], {
    home,
  })

test('a signature by Standard Webhooks is verified offline, whichever of two secrets made it', async () => {
  const old = newStandardSecret()
  const { code, stdout, stderr } = await verify(
    requestOf(`${signatureBy(secret)} ${signatureBy(old)}`),
    `${old}\n`,
    '--output',
    'table',
  )
  assert.equal(code, 0, stderr)
  assert.match(stdout, /✓ webhook signature +v1,\S+, the second of 2/)
  assert.match(stderr, /The signature is valid/)
  assert.doesNotMatch(stdout + stderr, new RegExp(old.slice(6).replaceAll(/[+/]/g, '.')))
})

test('a signature by another secret, a changed body and a late request are told apart, with exit code 6', async () => {
  const failedOf = async (...given: Parameters<typeof verify>) => {
    const { code, stdout } = await verify(...given)
    assert.equal(code, 6)
    const { checks } = JSON.parse(stdout)
    return checks
      .filter((check: { status: string }) => check.status === 'failed')
      .map((check: { name: string; advice: string }) => `${check.name}: ${check.advice.split(/[,:]/)[0]}`)
  }
  assert.deepEqual(await failedOf(requestOf(signatureBy(newStandardSecret())), secret), [
    'webhook_signature: It is signed by another secret',
  ])
  assert.deepEqual(await failedOf(requestOf(signatureBy(secret), body.replace('{}', '{ }')), secret), [
    'webhook_signature: The body was changed on the way',
  ])
  const late = await tidings(
    ['verify', '--request', requestOf(signatureBy(secret)), '--secret-file', file('s', secret)],
    { home },
  )
  assert.equal(late.code, 6)
  assert.match(late.stdout, /webhook_timestamp/)
})

test('a file that holds no secret is refused, and not repeated', async () => {
  const { code, stdout, stderr } = await verify(requestOf(signatureBy(secret)), 'whsec_tooshort')
  assert.equal(code, 2)
  assert.doesNotMatch(stdout + stderr, /tooshort/)
})
