import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { keyOfSecret, newStandardSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { eventually } from '../support/eventually.ts'
import { startIssuer } from './issuer.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const issuer = await startIssuer()
const home = temporaryFolder()
const [present, old] = [newStandardSecret(), newStandardSecret()]
const file = (text: string): string => {
  const path = join(home, randomUUID())
  writeFileSync(path, text)
  return path
}

/** `listen --secret-file`, where it listens, and what it has printed once it has ended. */
const listen = async (secrets: string, args: string[], env: Record<string, string> = {}) => {
  const child = startTidings(
    ['listen', '--port', '0', '--issuer', issuer.url, '--secret-file', file(secrets), '--output', 'json', ...args],
    { home, env },
  )
  let printed = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', text => (printed += text))
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(child.stderr).on('line', line => {
      const found = /^Listening on (\S+)\. /.exec(line)?.[1]
      if (found) resolve(found)
    })
    child.once('close', code => reject(new Error(`ended with ${code}: ${printed}`)))
  })
  return { child, url, ended, printed: () => printed }
}

const deliver = async (url: string, secrets: string[], atMs = Date.now()): Promise<number> => {
  const id = randomUUID()
  const timestampSeconds = Math.floor(atMs / 1000)
  const content = { id, timestampSeconds, body: issuer.bodyOf(id) }
  const signatures = secrets.map(secret => standardSignature(keyOfSecret(secret)!, content))
  const headers = {
    'webhook-id': id,
    'webhook-timestamp': `${timestampSeconds}`,
    'webhook-signature': signatures.join(' '),
  }
  const { status } = await issuer.deliver(url, { eventId: id, ...(secrets.length > 0 && { headers }) })
  return status
}

test('listen --secret-file takes what one of its secrets has signed, and refuses the rest with 401', async () => {
  const { url, ended, printed } = await listen(`${present}\n${old}\n`, ['--count', '6'])
  assert.equal(await deliver(url, [present]), 200)
  assert.equal(await deliver(url, [old]), 200)
  assert.equal(await deliver(url, [newStandardSecret(), present]), 200, 'in a rotation')
  assert.equal(await deliver(url, [newStandardSecret()]), 401)
  assert.equal(await deliver(url, [present], Date.now() - 400_000), 401)
  assert.equal(await deliver(url, []), 401, 'the token alone is not enough')
  assert.equal(await ended, 6)
  assert.match(printed(), /webhook_signature/)
  assert.match(printed(), /webhook_timestamp/)
  for (const secret of [present, old]) assert.ok(!printed().includes(secret.slice(6)))
})

test('listen --register --secret-file registers a webhook that signs with the first of them', async () => {
  const server = await startStubServer(({ query }) =>
    query.includes('mutation') ? { data: { webhook: { id: 'w1' } } } : { data: { webhooks: [] } },
  )
  const { child, url, ended } = await listen(`${present}\n${old}\n`, ['--register', '--once'], connectedTo(server))
  const [registered] = await eventually(
    'the registration',
    () => server.received.filter(({ query }) => query.includes('upsertWebhook')),
    found => found.length > 0,
  )
  const { variables } = registered!
  assert.deepEqual([variables.signing, variables.secret, variables.url], ['standard', present, url])
  child.kill('SIGINT')
  await ended
})

test('listen --pull --secret-file asks for the webhook that has the secret', async () => {
  const { code, stderr } = await tidings(['listen', '--pull', '--secret-file', file(present), '--issuer', issuer.url], {
    home,
  })
  assert.equal(code, 2)
  assert.match(stderr, /--webhook-id/)
})

test('listen --secret-file with what is no secret is wrong usage, and repeats nothing of it', async () => {
  const args = ['listen', '--port', '0', '--issuer', issuer.url, '--secret-file', file('whsec_tooshort')]
  const { code, stdout, stderr } = await tidings(args, { home })
  assert.equal(code, 2)
  assert.match(stderr, /whsec_/)
  assert.doesNotMatch(stdout + stderr, /tooshort/)
})
