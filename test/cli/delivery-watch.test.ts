import assert from 'node:assert/strict'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { follow } from '../../cli/connection/follow.ts'
import { LIVE_TIMES } from '../../cli/connection/live.ts'
import type { DeliveryAtAGlance } from '../../cli/resources/timeline.ts'
import { connectedTo, credentials, sendEvents, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

type Stub = Awaited<ReturnType<typeof startStubServer>>

const delivery = (number: number, given: Partial<DeliveryAtAGlance> = {}): DeliveryAtAGlance => ({
  id: `0193f000-0000-7000-8000-00000000000${number}`,
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
const told = (one: DeliveryAtAGlance) => ({ data: { deliveries: one } })
const refused = (code: string, message: string, more: object = {}) => ({
  errors: [{ message, extensions: { code, ...more } }],
})

const answered = [
  {
    number: 1,
    startedAt: '2026-11-21T00:40:01.000+00:00',
    durationMs: 5,
    statusCode: 200,
    failure: null,
    retryAfter: null,
  },
]

test('deliveries show tells this machine’s time, and which that is', async () => {
  const shown = { ...delivery(1, { status: 'delivered', attempts: answered }), event: { id: 'e1', payload: {} } }
  const server = await startStubServer(() => ({ data: { deliveries: [shown] } }))
  const env = { ...connectedTo(server), TZ: 'Asia/Kolkata' }
  const line = ['deliveries', 'show', shown.id, '--output', 'table']
  const { stdout } = await tidings(line, { home: temporaryFolder(), env })
  assert.match(stdout, /Times +UTC\+05:30, as on this machine/)
  assert.match(stdout, /2026-11-21 06:10:01 {2}queued/)
})

const startWatch = (server: Stub) => {
  const child = startTidings(['deliveries', 'watch'], { home: temporaryFolder(), env: connectedTo(server) })
  const next = (lines: AsyncIterator<string>) => async () => String((await lines.next()).value)
  return {
    child,
    line: next(createInterface(child.stdout)[Symbol.asyncIterator]()),
    message: next(createInterface(child.stderr)[Symbol.asyncIterator]()),
    ended: new Promise(resolve => child.once('close', resolve)),
  }
}

test('deliveries watch prints a JSON object a line, goes on where its stream broke, and ends on SIGINT', async t => {
  const server = await startStubServer()
  const resumedFrom: (string | undefined)[] = []
  server.stream = (response, lastEventId) => {
    resumedFrom.push(lastEventId)
    if (lastEventId === undefined) {
      sendEvents(response, '1')
      sendEvents(response, '2', told(delivery(1)))
      response.end()
    } else {
      // What was shown may come again.
      sendEvents(response, '3', told(delivery(1)), told(delivery(1, { status: 'delivered', attemptCount: 1 })))
    }
  }
  const watch = startWatch(server)
  t.after(() => watch.child.kill())
  assert.match(await watch.message(), /^Watching; times are UTC/)
  assert.equal(JSON.parse(await watch.line()).status, 'pending')
  assert.equal(JSON.parse(await watch.line()).status, 'delivered')
  assert.deepEqual(resumedFrom, [undefined, '2'])
  watch.child.kill('SIGINT')
  assert.equal(await watch.ended, 0)
})

test('deliveries watch ends when its token is revoked, and says so', async () => {
  const server = await startStubServer()
  server.stream = response => {
    sendEvents(response, '1', told(delivery(1)), refused('UNAUTHENTICATED', 'It is revoked.', { reason: 'revoked' }))
  }
  const watch = startWatch(server)
  await watch.message()
  assert.match(await watch.message(), /It is revoked\./)
  assert.equal(await watch.ended, 4)
})

/** What a subscription with short times yields and says, until there is what it waits for. */
const following = async (
  server: Stub,
  isEnough: (heard: string[]) => boolean,
  beginMs = LIVE_TIMES.beginMs,
): Promise<string[]> => {
  const ending = new AbortController()
  const heard: string[] = []
  const hear = (text: string): void => {
    heard.push(text)
    if (isEnough(heard)) ending.abort()
  }
  const say = { begun: () => hear('begun'), back: () => hear('back'), warn: hear }
  const connection = { url: new URL(server.url), ...credentials }
  const asked = { connection, document: 'subscription { deliveries { id } }', variables: {}, signal: ending.signal }
  const times = { ...LIVE_TIMES, doubtMs: 100, beginMs, silentMs: 200, againMs: 10, limitedMs: 10 }
  const results = follow<{ deliveries: DeliveryAtAGlance }>(asked, say, times)
  for await (const { deliveries } of results) hear(deliveries.status)
  return heard
}

test('a watch says that it is kept waiting, and goes on when its server is back', async () => {
  const server = await startStubServer()
  server.stream = response => {
    // Then it is silent, without a keep-alive.
    sendEvents(response, '1', told(delivery(1)))
    server.reset = true
  }
  const heard = await following(server, heard => {
    if (/Still trying/.test(heard.at(-1)!)) {
      server.reset = false
      server.stream = response => sendEvents(response, '2')
    }
    return heard.at(-1) === 'back'
  })
  assert.deepEqual([heard[0], heard[1], heard[3]], ['begun', 'pending', 'back'])
  assert.match(heard[2]!, /was not reached: .*ECONNRESET.* Still trying; nothing is missed within 10 min\./)
})

test('a watch goes on, more slowly, when the server limits its token', async () => {
  const server = await startStubServer()
  server.stream = response => {
    sendEvents(response, '1')
    response.end()
    server.stream = response => {
      response.writeHead(429, { 'content-type': 'application/json' })
      response.end(JSON.stringify(refused('RATE_LIMITED', 'Too many.')))
      server.stream = response => sendEvents(response, '2', told(delivery(1)))
    }
  }
  const heard = await following(server, heard => heard.at(-1) === 'pending')
  assert.match(heard[1]!, /^Too many\. Trying again in .* s; nothing is missed within 10 min\.$/)
})

test('a watch that was away for too long says from when on changes are not shown, and begins anew', async () => {
  const server = await startStubServer()
  const resumedFrom: (string | undefined)[] = []
  server.stream = (response, lastEventId) => {
    resumedFrom.push(lastEventId)
    if (resumedFrom.length === 2) {
      sendEvents(response, undefined, refused('BAD_USER_INPUT', 'It is from long ago.'))
    } else sendEvents(response, '1', told(delivery(1)))
    response.end()
  }
  const heard = await following(server, heard => heard.filter(it => it === 'pending').length === 2)
  assert.deepEqual(resumedFrom, [undefined, '1', undefined])
  assert.match(heard[2]!, /^It is from long ago\. What changed since then is not shown: .* --since \d{4}-.*Z$/)
})

test('a watch says so where something in between holds back event streams', async () => {
  const server = await startStubServer(() => ({ data: { viewer: { id: 'v' } } }))
  // The answer is kept back until it is complete.
  server.stream = () => {}
  await assert.rejects(
    following(server, () => false, 300),
    (error: { code: string; exitCode: number; message: string; hint: string }) => {
      assert.deepEqual([error.code, error.exitCode], ['NO_STREAM', 5])
      assert.match(error.message, /answers queries, but nothing of a subscription arrives: .* a proxy/)
      assert.match(error.hint, /text\/event-stream on unbuffered/)
      return true
    },
  )
})

test('a watch says so where no server answers a query either', async () => {
  const server = await startStubServer(() => 'reset')
  server.stream = () => {}
  await assert.rejects(
    following(server, () => false),
    { code: 'UNREACHABLE' },
  )
})
