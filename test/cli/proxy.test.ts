import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request } from 'node:http'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { after, test } from 'node:test'
import { connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder } from './tidings.ts'

const server = await startStubServer(({ query }) => ({ data: { asked: query } }))
const home = temporaryFolder()

const startProxy = async (...args: string[]): Promise<string> => {
  const child = startTidings(['proxy', '--port', '0', ...args], { home, env: connectedTo(server) })
  after(() => child.kill())
  const seen: string[] = []
  return new Promise((resolve, reject) => {
    createInterface(child.stderr).on('line', line => {
      seen.push(line)
      const url = /^(http:\S+)\/graphql signs as /.exec(line)?.[1]
      if (url) resolve(url)
    })
    child.once('close', () => reject(new Error(seen.join('\n'))))
  })
}

const send = (
  base: string,
  headers: Record<string, string>,
  { method = 'POST', body = '{"query":"{ viewer { id } }"}' } = {},
) =>
  new Promise<{ status: number; headers: Record<string, unknown>; text: string }>((resolve, reject) => {
    const all = { 'content-type': 'application/json', ...headers }
    const sent = request(new URL('/graphql', base), { method, headers: all }, async answer =>
      resolve({ status: answer.statusCode!, headers: answer.headers, text: await text(answer) }),
    )
    sent.on('error', reject)
    sent.end(body)
  })

const url = await startProxy()

test('a client that cannot sign is served through the proxy', async () => {
  const answer = await send(url, {})
  assert.deepEqual([answer.status, JSON.parse(answer.text)], [200, { data: { asked: '{ viewer { id } }' } }])
})

test('a mutation keeps its Idempotency-Key on its way through the proxy', async () => {
  server.received.length = 0
  await send(url, { 'idempotency-key': 'report-2026-3' })
  assert.equal(server.received[0]!.idempotencyKey, 'report-2026-3')
})

test('no web page is let in, by whatever name it comes', async () => {
  server.received.length = 0
  for (const headers of [
    { origin: 'https://evil.example' },
    { 'sec-fetch-site': 'cross-site' },
    { host: 'evil.example' },
    { host: `evil.example:${new URL(url).port}` },
  ] as Record<string, string>[]) {
    assert.equal((await send(url, headers)).status, 403, JSON.stringify(headers))
  }
  assert.equal(server.received.length, 0)
})

test('the pages of an origin that is named are let in, and no others', async () => {
  const origin = 'http://localhost:3000'
  const named = await startProxy('--allow-origin', origin)
  const asked = await send(named, { origin, 'access-control-request-method': 'POST' }, { method: 'OPTIONS', body: '' })
  assert.deepEqual([asked.status, asked.headers['access-control-allow-origin']], [204, origin])
  const answer = await send(named, { origin, 'sec-fetch-site': 'same-site' })
  assert.deepEqual([answer.status, answer.headers['access-control-allow-origin']], [200, origin])
  assert.equal((await send(named, { origin: 'http://localhost:3001' })).status, 403)
})

test('a server that is away is a 502 that says so', async () => {
  server.reset = true
  const answer = await send(url, {})
  server.reset = false
  assert.equal(answer.status, 502)
  assert.match(JSON.parse(answer.text).errors[0].message, /was not reached/)
})

test('a body too large is refused before it is signed', async () => {
  assert.equal((await send(url, {}, { body: 'x'.repeat(1024 * 1024 + 1) })).status, 413)
})

test('explore prints where the explorer is, and signs what that page asks', async () => {
  const child = startTidings(['explore', '--no-open'], { home, env: connectedTo(server) })
  after(() => child.kill())
  const [line] = (await once(createInterface(child.stdout), 'line')) as string[]
  assert.match(line!, /^http:\/\/127\.0\.0\.1:\d+\/explorer#signed$/)
  const { origin } = new URL(line!)
  assert.equal((await send(origin, { origin, 'sec-fetch-site': 'same-origin' })).status, 200)
  assert.equal((await send(origin, { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' })).status, 403)
})
