import assert from 'node:assert/strict'
import { request as ask, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { atFullSize } from '../support/size.ts'
import { temporaryFolder, tidings } from './tidings.ts'

/** Clears a screen in 7 and 8 bits, sets colours, and reverses the following text. */
const POISON = '\u001b[2J\u009b2J\u001b[31m\u202e\r'

/** Every text of a server, with control characters in it. */
const poisoned = (value: unknown, key = ''): unknown => {
  if (typeof value === 'string') return `${value}${POISON}`
  if (Array.isArray(value)) return value.map(each => poisoned(each))
  if (typeof value === 'number' && key === 'statusCode') return `${value}${POISON}`
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, poisoned(each, name)]))
}

describe('a server that means harm gets nothing to a terminal that acts there', () => {
  const home = temporaryFolder()
  let server: TestServer
  let env: Record<string, string>
  const ids: Record<string, string> = {}
  let hostile: ReturnType<typeof createServer>
  let receiver: Awaited<ReturnType<typeof startReceiver>>

  before(async () => {
    server = await startTestServer('sqlite', { env: { TIDINGS_LOG_LEVEL: 'silent' } })
    const { projectId, userId } = await addProject(server.database)
    const token = await server.token({ expiresAt: Date.now() + 3_600_000 })
    receiver = await startReceiver({ answer: (_request, n) => ({ status: n === 1 ? 200 : 400 }) })
    const { data } = await server.graphql('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
      url: receiver.url,
    })
    await server.graphql(
      `mutation { submitProjectReport(projectId: "${projectId}", quarter: "2031-1", submitterId: "${userId}") { id } }`,
    )
    await receiver.waitFor(requests => requests.length === 2)
    const found = await server.graphql('{ deliveries { id eventType } events { id type } }')
    ids.webhook = data.createWebhook.id
    ids.delivery = found.data.deliveries.find((each: { eventType: string }) => each.eventType !== 'ping').id
    ids.event = found.data.events.find((each: { type: string }) => each.type !== 'ping').id
    ids.token = token.id
    const { hostname, port } = new URL(server.url)
    hostile = createServer(async (request, response) => {
      const { method, url, headers } = request
      const body = await text(request)
      const onward = ask({ hostname, port, method, path: url, headers }, async answer => {
        const json = JSON.parse(await text(answer))
        const changed = Object.fromEntries(Object.entries(json).map(([key, value]) => [key, poisoned(value, key)]))
        response.writeHead(answer.statusCode!, { 'content-type': 'application/json' }).end(JSON.stringify(changed))
      })
      onward.end(body)
    }).listen(0, '127.0.0.1')
    await new Promise(resolve => hostile.once('listening', resolve))
    const url = `http://127.0.0.1:${(hostile.address() as AddressInfo).port}`
    env = { TIDINGS_URL: url, TIDINGS_API_KEY: token.apiKey, TIDINGS_API_SECRET: token.apiSecret }
  })
  after(async () => {
    hostile.close()
    hostile.closeAllConnections()
    await receiver.close()
    await server.stop()
  })

  const COMMANDS = [
    'whoami',
    'organisations list',
    'projects list',
    'users list',
    'reports list',
    'webhooks list',
    'webhooks show WEBHOOK',
    'deliveries list',
    'deliveries show DELIVERY',
    'events list',
    'events show EVENT',
    'tokens list',
    'tokens revoke TOKEN --yes --dry-run',
    'doctor',
    'doctor WEBHOOK',
    'query deliveries',
    'webhooks ping WEBHOOK',
    'deliveries redeliver DELIVERY',
    'graphql {viewer{name}}',
  ]
  const forms = [
    ['--output', 'table', '--no-color', '--verbose'],
    ['--output', 'json'],
    ...atFullSize([['--output', 'id']], []),
  ]

  for (const command of COMMANDS) {
    it(command, async () => {
      for (const form of forms) {
        const words = command
          .split(' ')
          .map(word => (ids[word.toLowerCase()] && /^[A-Z]+$/.test(word) ? ids[word.toLowerCase()]! : word))
        const { stdout, stderr } = await tidings([...words, ...form], { home, env })
        assert.doesNotMatch(stdout + stderr, /(?![\n\t])[\p{Cc}\u202e]/u, JSON.stringify(stdout + stderr))
      }
    })
  }
})
