import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { createSecureServer } from 'node:http2'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { cert, key } from '../delivery/localhost-certificate.ts'
import { eventually } from '../support/eventually.ts'
import { startIssuer } from './issuer.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const issuer = await startIssuer()
const home = temporaryFolder()

/** A receiver in a process of its own, once it listens. */
const startListening = async (args: string[], env: Record<string, string> = {}) => {
  const child = startTidings(['listen', '--port', '0', '--issuer', issuer.url, ...args], { home, env })
  const lines: string[] = []
  const messages: string[] = []
  let wanted: { count: number; done: () => void } | undefined
  createInterface(child.stdout).on('line', line => {
    lines.push(line)
    if (wanted && lines.length >= wanted.count) wanted.done()
  })
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(child.stderr).on('line', line => {
      messages.push(line)
      const found = /^Listening on (\S+)\. /.exec(line)?.[1]
      if (found) resolve(found)
    })
    child.once('close', code => reject(new Error(`ended with ${code}: ${messages.join('\n')}`)))
  })
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const received = (count: number) =>
    lines.length >= count
      ? Promise.resolve()
      : new Promise<void>(done => {
          wanted = { count, done }
        })
  const message = (pattern: RegExp) =>
    eventually(
      `a line like ${pattern}`,
      () => messages,
      all => all.some(line => pattern.test(line)),
    )
  return { child, url, lines, messages, ended, received, message }
}

test('listen prints a line of JSON for each delivery and ends well on SIGINT', async () => {
  const { child, url, lines, ended, received } = await startListening([])
  assert.equal((await issuer.deliver(url, { eventType: 'ping' })).status, 200)
  await received(1)
  const { verified, answered, eventType } = JSON.parse(lines[0]!)
  assert.deepEqual({ verified, answered, eventType }, { verified: true, answered: 200, eventType: 'ping' })
  child.kill('SIGINT')
  assert.equal(await ended, 0)
})

test('listen --once ends after one delivery, with exit code 6 if that was not valid', async () => {
  const good = await startListening(['--once'])
  await issuer.deliver(good.url)
  assert.equal(await good.ended, 0)
  const bad = await startListening(['--once'])
  assert.equal((await issuer.deliver(bad.url, { audience: 'https://b' })).status, 401)
  assert.equal(await bad.ended, 6)
})

test('listen rehearses answers', async () => {
  const { url, ended } = await startListening(['--answer', '503:1,200', '--count', '2'])
  const first = await issuer.deliver(url)
  assert.equal(first.status, 503)
  assert.equal(first.headers.get('retry-after'), '1')
  assert.equal((await issuer.deliver(url)).status, 200)
  assert.equal(await ended, 0)
})

test('a request that listen saves is private, and tidings verify takes it', async () => {
  const folder = temporaryFolder()
  const { url, ended } = await startListening(['--once', '--save', join(folder, 'saved')])
  await issuer.deliver(url)
  await ended
  const [name] = readdirSync(join(folder, 'saved'))
  const file = join(folder, 'saved', name!)
  assert.equal(statSync(file).mode & 0o777, 0o600)
  assert.match(readFileSync(file, 'utf8'), /^POST http:\/\/127\.0\.0\.1:\d+\/hooks HTTP\/1\.1\r\n/)
  const { code, stdout, stderr } = await tidings(['verify', '--request', file, '--issuer', issuer.url], { home })
  assert.equal(code, 0, stderr)
  assert.deepEqual(
    JSON.parse(stdout)
      .checks.filter((check: { status: string }) => check.status !== 'passed')
      .map((check: { name: string }) => check.name),
    ['webhook', 'replay'],
  )
})

test('listen --register makes itself a webhook and disables that at the end', async () => {
  const server = await startStubServer(({ query }) =>
    query.includes('mutation') ? { data: { webhook: { id: 'w1' } } } : { data: { webhooks: [] } },
  )
  const { child, url, ended, message } = await startListening(
    ['--register', '--events', 'token_expired'],
    connectedTo(server),
  )
  await message(/Registered as webhook w1/)
  assert.deepEqual(server.received[1]!.variables, { url, events: ['token_expired'], status: 'active' })
  child.kill('SIGTERM')
  assert.equal(await ended, 0)
  assert.match(server.received[2]!.query, /upsertWebhook\(id: \$id, status: disabled\)/)
  assert.deepEqual(server.received[2]!.variables, { id: 'w1' })
})

test('listen --register disables its webhook also when its reader stops reading', async () => {
  const server = await startStubServer(({ query }) =>
    query.includes('mutation') ? { data: { webhook: { id: 'w1' } } } : { data: { webhooks: [] } },
  )
  const { child, url, ended, message } = await startListening(['--register'], connectedTo(server))
  await message(/Registered/)
  child.stdout.destroy()
  await issuer.deliver(url)
  assert.equal(await ended, 0)
  assert.deepEqual(server.received[2]!.variables, { id: 'w1' })
})

test('listen --register takes up the disabled webhook of an earlier run', async () => {
  const server = await startStubServer(({ query }) =>
    query.includes('mutation') ? { data: { webhook: { id: 'w1' } } } : { data: { webhooks: [{ id: 'w1' }] } },
  )
  const { child, ended, message } = await startListening(['--register'], connectedTo(server))
  await message(/Registered/)
  assert.equal(server.received[1]!.variables.id, 'w1')
  child.kill('SIGINT')
  await ended
})

test('listen --register says when what the server sends does not come here', { timeout: 30_000 }, async () => {
  const attempts = [{ number: 1, statusCode: 502, failure: null, failureDetail: null }]
  const delivery = { id: 'd1', eventType: 'ping', status: 'pending', attemptCount: 1, nextAttemptAt: null, attempts }
  const server = await startStubServer(({ query }) =>
    query.includes('mutation')
      ? { data: { webhook: { id: 'w1' } } }
      : query.includes('statusReason')
        ? { data: { webhooks: [{ status: 'active', statusReason: null, deliveries: [delivery] }] } }
        : { data: { webhooks: [] } },
  )
  const { child, ended, message } = await startListening(
    ['--register', '--public-url', 'https://tunnel.example/hooks'],
    connectedTo(server),
  )
  await message(/Not received: ping d1 .*the answer 502/)
  await message(/Does https:\/\/tunnel\.example\/hooks lead to/)
  child.kill('SIGINT')
  await ended
})

test('a server that cannot reach this machine is told with the ways to let it', async () => {
  const server = await startStubServer(({ query }) =>
    query.includes('mutation')
      ? { errors: [{ message: 'It gave no answer.', extensions: { code: 'PING_FAILED' } }] }
      : { data: { webhooks: [] } },
  )
  const { code, stderr } = await tidings(['listen', '--register', '--port', '0'], { home, env: connectedTo(server) })
  assert.equal(code, 1)
  assert.match(stderr, /It gave no answer.*--public-url.*TIDINGS_ALLOW_NETWORKS/s)
})

test('where nothing answers what is forwarded, the registration says so and not that it answered', async () => {
  const server = await startStubServer(async ({ query, variables }) => {
    if (!query.includes('mutation')) return { data: { webhooks: [] } }
    await issuer.deliver(String(variables.url), { eventType: 'ping' })
    return { errors: [{ message: 'It answered 502.', extensions: { code: 'PING_FAILED' } }] }
  })
  const keys = ['--issuer', issuer.url, '--jwks', `${issuer.url}/.well-known/jwks.json`]
  const { code, stderr } = await tidings(
    ['listen', '--register', '--port', '0', '--forward', 'http://127.0.0.1:1/hooks', ...keys],
    { home, env: connectedTo(server) },
  )
  assert.equal(code, 1)
  assert.match(stderr, /The ping came here\. http:\/\/127\.0\.0\.1:1\/hooks did not answer: .*Repair that/)
  assert.doesNotMatch(stderr, /answered it with|tunnel/)
})

test('a port or a public URL that is none is wrong usage', async () => {
  for (const [option, value] of [
    ['--port', '99999'],
    ['--public-url', 'nope'],
    ['--forward', 'nope'],
  ] as const) {
    const { code, stderr } = await tidings(['listen', option, value, '--issuer', issuer.url], { home })
    assert.equal(code, 2, stderr)
  }
})

test('two ways to answer at once are wrong usage', async () => {
  const { code, stderr } = await tidings(['listen', '--reset', '--hang', '--issuer', issuer.url], { home })
  assert.equal(code, 2)
  assert.match(stderr, /--reset and --hang/)
})

test('--run runs a command that knows where deliveries go, and whose output is not taken for data', async () => {
  const { child, url, lines, message, ended } = await startListening(['--run', 'echo it is $WEBHOOK_URL'])
  await message(new RegExp(`^it is ${url}$`))
  child.kill('SIGINT')
  assert.equal(await ended, 0)
  assert.deepEqual(lines, [])
})

test('listen ends with its command where that fails', async () => {
  const { ended, messages } = await startListening(['--run', 'exit 3'])
  assert.equal(await ended, 1)
  assert.ok(messages.some(line => /The command of --run failed: it ended with exit code 3\./.test(line)))
})

test('a command of --run ends soon after all has been received', async () => {
  const { url, ended } = await startListening(['--once', '--run', 'sleep 298.25'])
  await issuer.deliver(url)
  assert.equal(await ended, 0)
  assert.notEqual(spawnSync('pgrep', ['-f', '^sleep 298.25$']).status, 0)
})

test('what is forwarded reaches a target that speaks only HTTP/2', async t => {
  const target = createSecureServer({ cert, key }, (request, response) => {
    request.resume().on('end', () => response.writeHead(request.httpVersion === '2.0' ? 202 : 500).end())
  })
  await new Promise<void>(resolve => target.listen(0, '127.0.0.1', resolve))
  t.after(() => target.close())
  const to = `https://127.0.0.1:${(target.address() as AddressInfo).port}/hooks`
  const { url, child } = await startListening(['--forward', to, '--forward-insecure'])
  assert.equal((await issuer.deliver(url)).status, 202)
  child.kill('SIGINT')
})

test('--forward-insecure forwards to a receiver whose certificate nobody knows', async t => {
  const target = createServer({ cert, key }, (request, response) =>
    request.resume().on('end', () => response.end('ok')),
  )
  await new Promise<void>(resolve => target.listen(0, '127.0.0.1', resolve))
  t.after(() => target.close())
  const forward = ['--forward', `https://127.0.0.1:${(target.address() as AddressInfo).port}/hooks`]
  const strict = await startListening(forward)
  assert.equal((await issuer.deliver(strict.url)).status, 502)
  const lenient = await startListening([...forward, '--forward-insecure'])
  assert.equal((await issuer.deliver(lenient.url)).status, 200)
  for (const { child } of [strict, lenient]) child.kill('SIGINT')
})
