import assert from 'node:assert/strict'
import { suite, test } from 'node:test'
import { v7 as uuid } from 'uuid'
import type { DeliveryAtAGlance } from '../../cli/resources/timeline.ts'
import type { Webhook } from '../../cli/resources/webhook.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, connectedTo, type Received, startStubServer } from './stub-server.ts'
import { noTerminal, openShell } from './terminal.ts'
import { temporaryFolder } from './tidings.ts'

// The dashboard with servers that flood it, are unreachable, limit it, or send control characters.

const home = temporaryFolder()
const viewer = {
  id: 'v1',
  name: 'support',
  apiKey: 'stub-key',
  permissions: ['admin'],
  seesAllOrganisations: true,
  organisations: [],
  expiresAt: null,
}
const webhook: Webhook = {
  id: uuid(),
  url: 'https://example.com/hooks',
  events: [],
  name: null,
  labels: {},
  deletedAt: null,
  organisationIds: [],
  projectIds: [],
  ordering: 'none',
  recovery: 'on_demand',
  missedSince: null,
  nextPingAt: null,
  recoveredAt: null,
  transport: 'push',
  clients: { waiting: 0, accessTokenName: null, remoteAddress: null },
  signing: 'token',
  headers: [],
  secret: null,
  status: 'active',
  statusReason: null,
  createdAt: '2026-11-21T00:40:01.123+00:00',
  updatedAt: '2026-11-21T00:40:01.123+00:00',
  lastDeliveryAt: null,
  health: { pending: 0, delivered: 5, rejected: 0, dropped: 0, cancelled: 0 },
}

const delivered = (given: Partial<DeliveryAtAGlance> = {}): DeliveryAtAGlance => ({
  id: uuid(),
  webhookId: webhook.id,
  webhook: { url: webhook.url },
  eventType: 'ping',
  status: 'delivered',
  attemptCount: 1,
  nextAttemptAt: null,
  createdAt: new Date().toISOString(),
  finishedAt: new Date().toISOString(),
  attempts: [
    {
      number: 1,
      startedAt: new Date().toISOString(),
      durationMs: 5,
      statusCode: 200,
      failure: null,
      retryAfter: null,
    },
  ],
  ...given,
})

/** What the API answers from these rows. */
const answering =
  (deliveries: () => DeliveryAtAGlance[], webhooks: () => Webhook[] = () => [webhook]) =>
  ({ query, variables }: Received): Answer => {
    if (query.includes('viewer')) return { data: { viewer } }
    if (query.includes('counts(')) return { data: { counts: [] } }
    if (query.includes('webhooks(')) return { data: { webhooks: webhooks() } }
    const { refreshed, timeline } = variables as Record<
      string,
      { selector: { id: { $in: string[] } } & { id: string } }
    >
    const rows = deliveries()
    return {
      data: {
        newest: rows.slice(0, 100),
        refreshed: refreshed ? rows.filter(({ id }) => refreshed.selector.id.$in.includes(id)) : [],
        timeline: timeline
          ? rows
              .filter(({ id }) => id === timeline.selector.id)
              .map(row => ({ ...row, event: { id: 'e1', payload: {} } }))
          : [],
      },
    }
  }

const open = async (
  answer: (received: Received) => Answer,
  { columns = 80, rows = 24, typed = 'tidings dashboard' } = {},
) => {
  const server = await startStubServer(answer)
  const env = { ...connectedTo(server), XDG_CONFIG_HOME: home }
  const terminal = await openShell({ columns, rows, env })
  await terminal.type(`${typed}\n`)
  await terminal.waitFor('WHAT HAPPENED')
  await terminal.waitWhile('Looking')
  return { server, terminal }
}

suite('the dashboard and its server', { skip: noTerminal, timeout: 240_000 }, () => {
  test('1,000 deliveries a second: it tells the rate, holds a selection still, and answers keys at once', async () => {
    const madeAt = (ms: number) => delivered({ id: uuid({ msecs: ms }), webhook: { url: `https://example.com/${ms}` } })
    let upTo = Date.now()
    // A minute old, so that there is no rate to begin with, which would be steadied.
    let made = Array.from({ length: 200 }, (_, ago) => madeAt(upTo - 60_000 - ago))
    let isFlooded = false
    /** One a millisecond, as a flood has them. */
    const flood = () => {
      if (!isFlooded) return made
      const now = Date.now()
      const fresh = Array.from({ length: Math.min(200, now - upTo) }, (_, ago) => madeAt(now - ago))
      upTo = now
      made = [...fresh, ...made].slice(0, 200)
      return made
    }
    const { terminal, server } = await open(answering(flood))
    await terminal.press('Down')
    await terminal.waitFor(/^> ✓/m)
    /** The median of the milliseconds until a key is shown. */
    const untilShownMs = async () => {
      const times: number[] = []
      for (let step = 0; step < 10; step++) {
        const [selected] = /^> ✓.*$/m.exec(await terminal.screen())!
        const at = performance.now()
        await terminal.press('Down')
        await terminal.waitFor(new RegExp(`^> ✓(?!${selected.slice(3).replaceAll(/[.()]/g, '\\$&')})`, 'm'))
        times.push(performance.now() - at)
      }
      return times.toSorted((a, b) => a - b)[5]!
    }
    const quietMs = await untilShownMs()
    isFlooded = true
    await terminal.waitFor(/ (9\d\d|1\d\d\d)\/s · /)
    await terminal.waitFor(/\d+\+ newer: home/)
    const before = server.received.length
    const floodedMs = await untilShownMs()
    const asked = server.received.length - before
    assert.ok(floodedMs < 5 * quietMs, `keys were shown after ${floodedMs} ms, and without a flood after ${quietMs} ms`)
    assert.ok(asked <= 30, 'a key asks for a look, and a look is one request')
  })

  test('left alone it makes no more than 90 requests a minute', async () => {
    const rows = [delivered()]
    const { server, terminal } = await open(answering(() => rows))
    await terminal.waitFor('● live')
    const before = server.received.length
    await new Promise(resolve => setTimeout(resolve, 6_000))
    assert.ok(server.received.length - before <= 9, `${server.received.length - before} in 6 s`)
  })

  test('the last day is a line beside each webhook, and is not counted with each look', async () => {
    const hour = Math.floor(Date.now() / 3_600_000) * 3_600_000
    const counted = (hoursAgo: number, count: number) => ({
      key: { webhookId: webhook.id, 'createdAt:hour': new Date(hour - hoursAgo * 3_600_000).toISOString() },
      count,
    })
    const rows = answering(() => [delivered()])
    const { server, terminal } = await open(
      received =>
        received.query.includes('counts(')
          ? { data: { counts: [counted(23, 8), counted(1, 1), counted(0, 3)] } }
          : rows(received),
      { columns: 130, rows: 24 },
    )
    await terminal.waitFor(/example\.com\/hooks .* █ {21}[▁▂][▃▄]\s/)
    await terminal.waitFor(/LAST DAY/)
    const looks = () => server.received.filter(({ query }) => query.includes('webhooks(')).length
    await eventually('three looks at the webhooks', looks, found => found >= 3)
    const counts = server.received.filter(({ query }) => query.includes('counts('))
    assert.equal(counts.length, 1)
    assert.deepEqual((counts[0]!.variables.selector as { webhookId: object }).webhookId, { $in: [webhook.id] })
  })

  test('a server that is away is said to be, and looked for until it is back', async () => {
    const { server, terminal } = await open(answering(() => [delivered()]))
    server.reset = true
    await terminal.waitFor(/○ no answer for \d+ s, as of \d\d:\d\d:\d\d/)
    await terminal.waitFor(
      /was not reached: the connection was reset\s+\(ECONNRESET\)\.\s+Still trying\. The screen shows the state/,
    )
    server.reset = false
    await terminal.waitFor(/● live/)
    await terminal.waitWhile('Still trying')
  })

  test('a server that freezes is said not to answer within seconds, and is live soon after it thaws', async () => {
    const answer = answering(() => [delivered()])
    const { server, terminal } = await open(answer)
    await terminal.waitFor('● live')
    server.answer = () => 'hang'
    await terminal.waitFor(/○ no answer for [3-6] s, as of \d\d:\d\d:\d\d/, 8_000)
    await terminal.waitFor(/did not answer within 5 s\. Still trying/, 12_000)
    await terminal.waitFor(/○ no answer for 1\d s/, 16_000)
    server.answer = answer
    await terminal.waitFor('● live', 22_000)
    await terminal.waitWhile(/Still trying|no answer/)
  })

  test('after one slow answer it looks again within 15 s', async () => {
    const answer = answering(() => [delivered()])
    const { server, terminal } = await open(answer)
    server.answer = received => ({ ...(answer(received) as object), afterMs: 4_000 })
    await terminal.waitFor(/no answer for [2-6] s/)
    server.answer = answer
    await terminal.waitFor('● live')
    const before = server.received.length
    await eventually(
      'another look',
      async () => server.received.length,
      made => made > before,
      { timeoutMs: 17_000 },
    )
  })

  test('when the server limits the token it slows down and says so', async () => {
    const answer = answering(() => [delivered()])
    const { server, terminal } = await open(answer)
    server.answer = () => ({ status: 429, errors: [{ message: 'Too many.', extensions: { code: 'RATE_LIMITED' } }] })
    await terminal.waitFor(/◐ slowed/)
    await terminal.waitFor(/The server limits how often this access token may ask; looking every [2-9]/)
    server.answer = answer
    const before = server.received.length
    await new Promise(resolve => setTimeout(resolve, 3_000))
    assert.equal(server.received.length, before, 'it rests before it asks again')
  })

  test('a token that is revoked meanwhile is said to be, with what to do', async () => {
    const { server, terminal } = await open(answering(() => [delivered()]))
    server.answer = () => ({
      status: 401,
      errors: [{ message: 'The access token is revoked.', extensions: { code: 'UNAUTHENTICATED', reason: 'revoked' } }],
    })
    await terminal.waitFor(/✗ refused/)
    await terminal.waitFor(/The access token is revoked\..*Ask an admin for a\s+new one, then: tidings login/)
  })

  test('what a server sends cannot act on the terminal', async () => {
    const hostile = '\x1b[2J\x1b]0;gone\x07\u202e'
    const rows = [delivered({ eventType: `${hostile}type`, webhook: { url: `https://${hostile}example.com` } })]
    const webhooks = [{ ...webhook, url: `https://example.com/${hostile}` }]
    const { terminal } = await open(
      answering(
        () => rows,
        () => webhooks,
      ),
    )
    const screen = await terminal.waitFor(/\\u001b/)
    assert.match(screen, /━ Deliveries ━/)
    assert.match(screen, /delivered \(200, 5 ms\) +…\S*\\u202etype/)
    await terminal.press('Enter')
    await terminal.waitFor(/Event +\\u001b\[2J\\u001b\]0;gone\\u0007\\u202etype/)
  })

  test('a command typed ahead of the prompt, which leaves the cursor beside it, does not tear the screen', async () => {
    const { terminal } = await open(
      answering(() => [delivered()]),
      { typed: "printf 'prompt '; tidings dashboard" },
    )
    await terminal.waitFor(/^Tidings .*● live/)
  })

  test('a narrow screen is not torn by wide characters', async () => {
    const { terminal } = await open(
      answering(() => [
        delivered({ webhook: { url: 'https://例え.example.com/受け取り/とても長い道のり/その先' } }),
        delivered(),
      ]),
    )
    const screen = await terminal.waitFor(/例え/)
    assert.equal(screen.trimEnd().split('\n').length, 24)
    assert.match(screen, /c recover\s*$/)
  })

  test('without webhooks and deliveries it says what to do first', async () => {
    const { terminal } = await open(
      answering(
        () => [],
        () => [],
      ),
    )
    await terminal.waitFor(/None yet\. Register an endpoint with: tidings webhooks create URL/)
    await terminal.waitFor(/None yet\. One is made for each webhook that an event concerns/)
  })
})
