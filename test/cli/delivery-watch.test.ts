import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { DeliveryWatch } from '../../cli/resources/delivery-watch.ts'
import type { DeliveryAtAGlance } from '../../cli/resources/timeline.ts'
import { eventually } from '../support/eventually.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const id = (number: number) => `0193f000-${(number * 1000).toString(16).padStart(4, '0')}-7000-8000-000000000001`
const idAt = (ms: number) => {
  const hex = (1_780_000_000_000 + ms).toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000001`
}
const delivery = (number: number, given: Partial<DeliveryAtAGlance> = {}): DeliveryAtAGlance => ({
  id: id(number),
  webhookId: 'w1',
  webhook: { url: 'https://example.com/hooks' },
  eventType: 'ping',
  status: 'pending',
  attemptCount: 0,
  nextAttemptAt: null,
  createdAt: '2026-11-21T00:40:01.000+00:00',
  finishedAt: null,
  attempts: [],
  ...given,
})
const answered = (statusCode: number) => [
  { number: 1, startedAt: '2026-11-21T00:40:01.000+00:00', durationMs: 5, statusCode, failure: null, retryAfter: null },
]

interface Query {
  selector: { id?: { $gte?: string; $in?: string[] }; status?: string }
  sort: Record<string, string>[]
  limit?: number
  after?: string
}
/** What the API would answer from these deliveries. */
const find = (deliveries: DeliveryAtAGlance[], { selector, sort, limit, after }: Query) => {
  const found = deliveries
    .filter(each => selector.id?.$gte === undefined || each.id >= selector.id.$gte)
    .filter(each => selector.id?.$in === undefined || selector.id.$in.includes(each.id))
    .filter(each => selector.status === undefined || each.status === selector.status)
    .sort((a, b) => (a.id < b.id ? -1 : 1))
  const ordered = sort[0]!.id === 'desc' ? found.reverse() : found
  const from = after === undefined ? 0 : ordered.findIndex(each => each.id === after) + 1
  return ordered.slice(from, from + (limit ?? ordered.length))
}
const watching = async (deliveries: DeliveryAtAGlance[]) => {
  const watch = new DeliveryWatch(async (_document, variables) => {
    return { deliveries: find(deliveries, (variables as { query: Query }).query) } as never
  })
  await watch.begin()
  return async () => {
    const told: string[] = []
    for await (const batch of watch.changes()) {
      for (const { id: one, status, attemptCount } of batch) {
        told.push(`${[1, 2].find(number => id(number) === one) ?? 3} ${status} ${attemptCount}`)
      }
    }
    return told
  }
}

test('what is there before a watch begins is not told', async () => {
  const changes = await watching([delivery(1, { status: 'delivered' }), delivery(2)])
  assert.deepEqual(await changes(), [])
})

test('a new delivery is told once, and again with each attempt and its end', async () => {
  const deliveries = [delivery(1)]
  const changes = await watching(deliveries)
  deliveries.push(delivery(2))
  assert.deepEqual(await changes(), ['2 pending 0'])
  assert.deepEqual(await changes(), [])
  deliveries[1] = delivery(2, { attemptCount: 1, attempts: answered(500) })
  assert.deepEqual(await changes(), ['2 pending 1'])
  deliveries[1] = delivery(2, { attemptCount: 2, status: 'delivered', attempts: answered(200) })
  assert.deepEqual(await changes(), ['2 delivered 2'])
  assert.deepEqual(await changes(), [])
})

test('a delivery that was pending before the watch began is told when it ends', async () => {
  const deliveries = [delivery(1), delivery(30, { status: 'delivered' })]
  const changes = await watching(deliveries)
  deliveries[0] = delivery(1, { status: 'dropped', attemptCount: 3 })
  assert.deepEqual(await changes(), ['1 dropped 3'])
})

test('a delivery whose transaction ended after that of a later one is not missed', async () => {
  const deliveries: DeliveryAtAGlance[] = []
  const changes = await watching(deliveries)
  deliveries.push(delivery(2, { status: 'delivered' }))
  assert.deepEqual(await changes(), ['2 delivered 0'])
  deliveries.push(delivery(1, { status: 'delivered' }))
  assert.deepEqual(await changes(), ['1 delivered 0'])
})

test('nor is one whose transaction took long, though it is told some looks later', async () => {
  const deliveries = [delivery(30, { status: 'delivered' })]
  const changes = await watching(deliveries)
  deliveries.push(delivery(2, { status: 'delivered' }))
  const told: string[] = []
  for (let looks = 0; looks < 20; looks++) told.push(...(await changes()))
  assert.deepEqual(told, ['2 delivered 0'])
})

test('at 1,000 a second each delivery’s end is told once, and none is missed', async () => {
  const rows = new Map<string, DeliveryAtAGlance>()
  let nowMs = 0
  const watch = new DeliveryWatch(async (_document, variables) => {
    // As it is asked for more, more comes.
    step(20)
    return { deliveries: find([...rows.values()], (variables as { query: Query }).query) } as never
  })
  /** Time goes on: one is made each millisecond, and comes to an end between one and 3,000 ms later. */
  const step = (ms: number) => {
    for (const end = nowMs + ms; nowMs < end; nowMs += 1) {
      rows.set(idAt(nowMs), delivery(0, { id: idAt(nowMs) }))
      for (const ago of [1, 50, 700, 3000]) {
        const one = rows.get(idAt(nowMs - ago))
        if (one && [1, 50, 700, 3000][(nowMs - ago) % 4] === ago) {
          rows.set(one.id, { ...one, status: 'delivered', attemptCount: 1, attempts: answered(200) })
        }
      }
    }
  }
  await watch.begin()
  const before = new Set(rows.keys())
  const ends = new Map<string, number>()
  const look = async () => {
    for await (const batch of watch.changes()) {
      for (const { id, status } of batch) if (status !== 'pending') ends.set(id, (ends.get(id) ?? 0) + 1)
    }
  }
  for (let looks = 0; looks < 12; looks++) {
    step(1000)
    await look()
  }
  assert.ok(ends.size > 9_000)
  assert.ok([...ends.values()].every(times => times === 1))
  const over = [...rows.values()].filter(({ id, status }) => !before.has(id) && status !== 'pending')
  await look()
  for (const { id } of over) assert.ok(ends.has(id), `the end of ${id} was not told`)
})

test('what a failing request has kept from being told is told at the next look', async () => {
  const deliveries: DeliveryAtAGlance[] = [delivery(1)]
  let failing = false
  const watch = new DeliveryWatch(async (document, variables) => {
    if (failing && document.includes('eventType')) throw new Error('away')
    return { deliveries: find(deliveries, (variables as { query: Query }).query) } as never
  })
  await watch.begin()
  deliveries.push(delivery(2, { status: 'delivered' }))
  failing = true
  await assert.rejects(watch.changes().next())
  failing = false
  assert.deepEqual(
    (await watch.changes().next()).value.map((each: DeliveryAtAGlance) => each.id),
    [id(2)],
  )
})

test('deliveries show tells this machine’s time, and which that is', async () => {
  const shown = { ...delivery(1, { status: 'delivered', attempts: answered(200) }), event: { id: 'e1', payload: {} } }
  const server = await startStubServer(() => ({ data: { deliveries: [shown] } }))
  const env = { ...connectedTo(server), TZ: 'Asia/Kolkata' }
  const { stdout } = await tidings(['deliveries', 'show', id(1), '--output', 'table'], { home: temporaryFolder(), env })
  assert.match(stdout, /Times +UTC\+05:30, as on this machine/)
  assert.match(stdout, /2026-11-21 06:10:01 {2}queued/)
})

test('deliveries watch goes on, more slowly, when the server limits the token', {
  timeout: 60_000,
}, async t => {
  const server = await startStubServer(() => ({ data: { deliveries: [] } }))
  const child = startTidings(['deliveries', 'watch'], { home: temporaryFolder(), env: connectedTo(server) })
  t.after(() => child.kill())
  const messages = createInterface(child.stderr)[Symbol.asyncIterator]()
  assert.match(String((await messages.next()).value), /Watching; times are UTC/)
  server.answer = () => ({ status: 429, errors: [{ message: 'Too many.', extensions: { code: 'RATE_LIMITED' } }] })
  assert.match(String((await messages.next()).value), /Too many\. From then on it polls every 2 s; nothing is missed/)
  assert.equal(child.exitCode, null)
})

test('deliveries watch prints a JSON object a line, waits for a server that is away, and ends on SIGINT', async t => {
  const deliveries: DeliveryAtAGlance[] = []
  const server = await startStubServer(({ variables }) => ({
    data: { deliveries: find(deliveries, variables.query as Query) },
  }))
  const child = startTidings(['deliveries', 'watch'], { home: temporaryFolder(), env: connectedTo(server) })
  t.after(() => child.kill())
  const ended = new Promise(resolve => child.once('close', resolve))
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()
  const messages = createInterface(child.stderr)[Symbol.asyncIterator]()
  assert.match(String((await messages.next()).value), /Watching/)
  deliveries.push(delivery(1))
  assert.equal(JSON.parse(String((await lines.next()).value)).status, 'pending')
  server.reset = true
  assert.match(String((await messages.next()).value), /not reached.*Still trying/)
  server.reset = false
  deliveries[0] = delivery(1, { status: 'delivered', attemptCount: 1, attempts: answered(200) })
  assert.equal(JSON.parse(String((await lines.next()).value)).status, 'delivered')
  assert.match(String((await messages.next()).value), /back/)
  child.kill('SIGINT')
  assert.equal(await ended, 0)
})

test('watch has the server tell, and looks for itself once the server does not any more', async () => {
  const streams: ServerResponse[] = []
  let deliveries = [delivery(1)]
  let asked = 0
  const telling = createServer(async (request, response) => {
    const { variables = {} } = JSON.parse(await text(request))
    if (request.headers.accept === 'text/event-stream' && streams.length === 0) {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(':\n\n')
      streams.push(response)
      return
    }
    if (request.headers.accept === 'text/event-stream') return void response.writeHead(503).end()
    asked += 1
    response.end(JSON.stringify({ data: { deliveries: variables.query ? find(deliveries, variables.query) : [] } }))
  })
  telling.listen(0, '127.0.0.1')
  await once(telling, 'listening')
  const url = `http://127.0.0.1:${(telling.address() as AddressInfo).port}`
  const child = startTidings(['deliveries', 'watch', '--output', 'ndjson'], {
    home: temporaryFolder(),
    env: connectedTo({ url }),
  })
  const lines: { id: string; status: string }[] = []
  createInterface(child.stdout).on('line', line => lines.push(JSON.parse(line)))
  try {
    const untilTold = (count: number) =>
      eventually(
        `${count} lines`,
        () => lines.map(({ status }) => status),
        told => told.length >= count,
      )
    await eventually(
      'it to subscribe',
      () => streams.length,
      count => count === 1,
    )
    const tell = (told: DeliveryAtAGlance) =>
      streams[0]!.write(`event: next\nid: 1\ndata: ${JSON.stringify({ data: { deliveries: told } })}\n\n`)
    const rejected = delivery(1, { status: 'rejected', attemptCount: 1, attempts: answered(400) })
    tell(rejected)
    await untilTold(1)
    // What was told is known, and is not told again.
    tell(rejected)
    const before = asked
    deliveries = [rejected, delivery(2)]
    streams[0]!.destroy()
    assert.deepEqual(await untilTold(2), ['rejected', 'pending'])
    assert.ok(asked > before)
  } finally {
    child.kill()
    telling.closeAllConnections()
    telling.close()
  }
})
