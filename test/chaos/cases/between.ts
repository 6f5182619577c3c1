import { setTimeout as wait } from 'node:timers/promises'
import { type Client, done } from '../stage/client.ts'
import type { Arrival, Endpoint, Reply } from '../stage/endpoint.ts'
import {
  CREATE_WEBHOOK,
  gate,
  PING,
  RECOVER,
  type Stage,
  UPSERT_WEBHOOK,
  until,
  untilSettled,
  type World,
  within,
} from '../stage/stage.ts'
import { atEachStatement, shown } from '../stage/steps.ts'
import { startTunnel } from '../stage/tunnel.ts'
import { ALL, type Case, SHARED } from './case.ts'

// What can happen between two steps of a delivery: between an endpoint's answer and a new URL, between a commit and its
// answer, between a lease and its takeover, between any two statements.

const PAUSE_S = 600
const GOES_ON_MS = 5_000
const UNDER_WAY = 'SELECT COUNT(*) FROM delivery_queue WHERE lease IS NOT NULL'

/** Whether all created deliveries arrive at an endpoint within a time. */
const expectAllAt = async (stage: Stage, endpoint: Endpoint, count: number, what: string): Promise<void> => {
  const startedAt = Date.now()
  await within(GOES_ON_MS, () => endpoint.byId().size >= count)
  stage.expect(
    `${what} within ${GOES_ON_MS / 1000} s`,
    endpoint.byId().size >= count,
    `${endpoint.byId().size} of ${count} arrived in ${Date.now() - startedAt} ms`,
  )
}

const pausedThenUrl: Case = {
  name: 'paused-then-url',
  says: 'What an endpoint asked to wait for goes to the url that takes its place at once, and so does what comes after',
  engines: ALL,
  async run(stage) {
    const server = await stage.server()
    const client = stage.client(server)
    const world = await stage.world(client)
    const later = gate()
    // One request stays open, so that the process that made it still knows of the pause.
    const old = await stage.endpoint(async (_arrival, _before) => {
      if (old.arrivals.length === 1) {
        await later.opened
        return { status: 500 }
      }
      return { status: 429, headers: { 'retry-after': String(PAUSE_S) } }
    })
    const next = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: old.url }))
    await done(world.submit(client))
    await until('the first has arrived', () => old.arrivals.length === 1)
    await world.submitMany(client, 20)
    await until('some wait, and only the first is under way', async () => {
      const waiting = 'SELECT COUNT(*) FROM delivery_queue WHERE due_at > ?'
      const isPaused = (await stage.sql.number(waiting, [Date.now() + PAUSE_S * 500])) > 0
      return isPaused && (await stage.sql.number(UNDER_WAY)) === 1
    })
    await done(client(UPSERT_WEBHOOK, { id, url: next.url }))
    await world.submitMany(client, 5)
    await expectAllAt(stage, next, 25, 'what waited, and what is new, arrives at the new url')
    const isOpen = await within(GOES_ON_MS, async () => (await stage.sql.number(UNDER_WAY)) === 1)
    stage.expect('meanwhile the first is under way', isOpen, `${await stage.sql.number(UNDER_WAY)} are under way`)
    later.open()
    await untilSettled(stage)
  },
}

const oldPause: Case = {
  name: 'old-pause',
  says: 'A 429 of the old url, while more waits in the same process for the new one, holds up none of that',
  engines: ALL,
  async run(stage) {
    const server = await stage.server({ env: { TIDINGS_CONCURRENCY: '32' } })
    const client = stage.client(server)
    const world = await stage.world(client)
    const told = gate()
    const old = await stage.endpoint(async () => {
      await told.opened
      return { status: 429, headers: { 'retry-after': String(PAUSE_S) } }
    })
    // So slow that some wait in memory when the old url answers.
    const next = await stage.endpoint(() => ({ status: 200, afterMs: 400 }))
    const { id } = await done(client(CREATE_WEBHOOK, { url: old.url }))
    await world.submitMany(client, 4)
    await until('they have arrived', () => old.arrivals.length === 4)
    await done(client(UPSERT_WEBHOOK, { id, url: next.url }))
    await world.submitMany(client, 40)
    await until('the new url is sent to', () => next.arrivals.length > 0)
    told.open()
    await expectAllAt(stage, next, 44, 'all arrives at the new url')
    await untilSettled(stage)
  },
}

/** Breaks the connection when the database has answered a commit that comes after a statement like `after`. */
const commitInDoubt = async (stage: Stage, after: RegExp, answer: (arrival: Arrival, before: number) => Reply) => {
  const count = 8
  const by = await stage.proxy()
  const maker = await stage.server({ roles: 'api' })
  const client = stage.client(maker)
  const world = await stage.world(client)
  const endpoint = await stage.endpoint(answer)
  await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  // Clients take from a process that serves them.
  await stage.server({ by, roles: stage.isPulled ? 'api,delivery' : 'delivery' })
  let hasCome = false
  const hold = by.hold(
    text => {
      hasCome ||= after.test(text)
      return hasCome && /^\s*COMMIT/i.test(text)
    },
    { answer: true },
  )
  await world.submitMany(client, count)
  await hold.caught
  by.cut()
  hold.end()
  const cutAt = Date.now()
  await untilSettled(stage)
  const tookMs = Date.now() - cutAt
  const attempts = await stage.sql.rows<{ what: string; count: number }>(
    `SELECT COALESCE(failure, status_code) AS what, COUNT(*) AS count FROM attempts a
     JOIN deliveries d ON d.id = a.delivery_id WHERE d.event_type <> 'ping' GROUP BY what ORDER BY what`,
  )
  return { endpoint, count, tookMs, attempts: attempts.map(it => `${it.count} × ${it.what}`).join(', ') }
}

const claimInDoubt: Case = {
  name: 'claim-in-doubt',
  says: 'What is claimed when the connection breaks, before the answer to the commit, does not wait for its lease',
  engines: SHARED,
  async run(stage) {
    const { tookMs, attempts, count, endpoint } = await commitInDoubt(
      stage,
      /UPDATE\s+delivery_queue\s+SET\s+lease/i,
      () => ({
        status: 200,
      }),
    )
    stage.expect('all is delivered within 10 s', tookMs < 10_000, `after ${tookMs} ms`)
    stage.expect(
      'the log has the attempts that the endpoint had',
      attempts === `${count} × 200` && endpoint.arrivals.length === count,
      `${attempts}; ${endpoint.arrivals.length} arrived`,
    )
  },
}

const settleInDoubt: Case = {
  name: 'settle-in-doubt',
  says: 'What is recorded when the connection breaks, before the commit is answered, is recorded once, not sent again',
  engines: SHARED,
  async run(stage) {
    const { attempts, count, endpoint } = await commitInDoubt(
      stage,
      /INSERT\s+INTO\s+attempts/i,
      (_arrival, before) => ({
        status: before === 0 ? 503 : 200,
      }),
    )
    stage.expect(
      'each is answered twice, and logged so',
      endpoint.arrivals.length === 2 * count &&
        endpoint.sentAgain().length === 0 &&
        attempts === `${count} × 200, ${count} × 503`,
      `${endpoint.arrivals.length} of ${count} arrived, ${endpoint.sentAgain().length} after their 200: ${attempts}`,
    )
  },
}

const pingTakenOver: Case = {
  name: 'ping-taken-over',
  says: 'A ping whose process waits for its database past the lease is not sent by it when another has sent it',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = await stage.server({ by, roles: 'api' })
    const other = await stage.server()
    const client = stage.client(other)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    endpoint.pings.splice(0)
    let isQueued = false
    const hold = by.hold(text => {
      isQueued ||= /INSERT INTO delivery_queue/i.test(text)
      return isQueued && /^\s*SELECT id, type, payload/i.test(text)
    })
    const pinging = stage.client(slow)(PING, { id })
    await hold.caught
    slow.signal('SIGSTOP')
    await until('another has sent it', () => endpoint.pings.length === 1, 60_000)
    await untilSettled(stage)
    hold.end()
    slow.signal('SIGCONT')
    await pinging
    await wait(2_000)
    stage.expect('it is sent once', endpoint.pings.length === 1, `sent ${endpoint.pings.length} times`)
  },
}

/** A connection may take 5 s. */
const CONNECTING_MS = 3_000

const connectedLate: Case = {
  name: 'connected-late',
  says:
    'What is being connected when its webhook is disabled, in a process that has lost its database or stands still, ' +
    'is not sent when the connection is there',
  engines: SHARED,
  async run(stage) {
    const tunnel = await startTunnel()
    stage.after(tunnel.close)
    for (const fault of ['has lost its database', 'stood still'] as const) {
      const by = await stage.proxy()
      const client = stage.client(await stage.server({ roles: 'api' }))
      const world = await stage.world(client)
      const endpoint = await stage.endpoint()
      const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
      const sender = await stage.server({ by, roles: 'delivery', env: { HTTP_PROXY: tunnel.url } })
      tunnel.shut()
      await done(world.submit(client))
      await until('it is being connected', () => tunnel.waiting() > 0)
      if (fault === 'stood still') sender.signal('SIGSTOP')
      else by.hole()
      await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
      await wait(CONNECTING_MS)
      tunnel.open()
      sender.signal('SIGCONT')
      await wait(2_000)
      stage.expect(
        `nothing is sent by one that ${fault}`,
        endpoint.arrivals.length === 0,
        `${endpoint.arrivals.length} sent by one that ${fault}`,
      )
      by.mend()
      await untilSettled(stage)
      const lost =
        'SELECT COUNT(*) FROM attempts a JOIN deliveries d ON d.id = a.delivery_id ' +
        'WHERE d.webhook_id = ? AND a.failure IS NOT NULL'
      const isForgotten = await within(15_000, async () => (await stage.sql.number(lost, [id])) === 0)
      stage.expect(
        `nothing is logged of what was not sent by one that ${fault}`,
        isForgotten,
        isForgotten ? 'nothing logged' : 'an attempt is logged as lost',
      )
      sender.signal('SIGKILL')
      await sender.ended
    }
  },
}

const SWEPT_WITHIN_MS = 15_000

type Meanwhile = (given: { client: Client; id: string; next: Endpoint }) => Promise<unknown>

const MEANWHILE: Record<string, Meanwhile> = {
  disabled: ({ client, id }) => done(client(UPSERT_WEBHOOK, { id, status: 'disabled' })),
  'given another url': ({ client, id, next }) => done(client(UPSERT_WEBHOOK, { id, url: next.url })),
  'disabled, enabled and recovered': async ({ client, id }) => {
    const since = new Date(Date.now() - 60_000).toISOString()
    await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
    await done(client(UPSERT_WEBHOOK, { id, status: 'active' }))
    await done(client(RECOVER, { webhookId: id, since }))
  },
}

const ANSWERS: Record<string, Reply> = {
  '200': { status: 200 },
  '500': { status: 500 },
  '429 with Retry-After': { status: 429, headers: { 'retry-after': '600' } },
  '429': { status: 429 },
}

/** What is wrong with what the database says of what endpoints had. */
const wrongOf = async (
  stage: Stage,
  webhookId: string,
  had: Arrival[],
  mustArrive: boolean,
): Promise<string | undefined> => {
  const rows = await stage.sql.rows<{ id: string; status: string; queued: number }>(
    `SELECT d.id, d.status, (SELECT COUNT(*) FROM delivery_queue q WHERE q.delivery_id = d.id) AS queued
     FROM deliveries d WHERE d.webhook_id = ? AND d.event_type <> 'ping'`,
    [webhookId],
  )
  for (const { id, status, queued } of rows) {
    if ((status === 'pending') !== (Number(queued) === 1)) return `${status} with ${queued} rows in the queue`
    const arrivals = had.filter(arrival => arrival.id === id)
    const logged = await stage.sql.rows<{ failure: string | null; status_code: number | null }>(
      'SELECT failure, status_code FROM attempts WHERE delivery_id = ? ORDER BY number',
      [id],
    )
    const seen = arrivals.map(it => String(it.status)).toSorted()
    const told = logged.map(it => it.failure ?? String(it.status_code)).toSorted()
    if (seen.join() !== told.join())
      return `logged ${told.join(', ') || 'nothing'}, and the endpoint: ${seen.join(', ')}`
    if (seen.includes('200') && status !== 'delivered') return `${status}, and the endpoint has answered 200`
  }
  if (mustArrive && !rows.some(({ status }) => status === 'delivered')) return `none of ${rows.length} is delivered`
  return rows.length === 0 ? 'no delivery' : undefined
}

const interrupted: Case = {
  name: 'interrupted',
  says:
    'Wherever a process stands between claim and record, when the webhook is disabled, redirected or recovered, the ' +
    'log says what the endpoint had, and nothing stays behind',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const other = await stage.server({ roles: 'api' })
    const client = stage.client(other)
    const world = await stage.world(client)
    await stage.server({ by, roles: 'delivery' })
    for (const [answered, reply] of Object.entries(ANSWERS)) {
      for (const [name, meanwhile] of Object.entries(MEANWHILE)) {
        const isToArrive = name !== 'disabled' && !answered.startsWith('429')
        const old = await stage.endpoint((_arrival, before) => (before === 0 ? reply : { status: 200 }))
        const next = await stage.endpoint()
        const steps = await atEachStatement(by, {
          prepare: async () => (await done(client(CREATE_WEBHOOK, { url: old.url }))).id,
          async act(id) {
            await done(world.submit(client))
            await within(20_000, () => isRecorded(stage, id))
          },
          meanwhile: id => meanwhile({ client, id, next }),
          async check(id) {
            const found = await atRest(stage, id, [old, next], isToArrive)
            await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
            const left = () => stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE webhook_id = ?', [id])
            const isGone = await within(SWEPT_WITHIN_MS, async () => (await left()) === 0)
            for (const endpoint of [old, next]) endpoint.arrivals.splice(0)
            return found ?? (isGone ? undefined : `${await left()} left in the queue`)
          },
          from: /delivery_queue.*FOR UPDATE SKIP LOCKED/is,
          meanwhileMs: 1_500,
        })
        stage.expect(
          `answered ${answered}, and ${name}`,
          steps.wrong.length === 0 && steps.steps > 0,
          `${answered}, ${name}: ${shown(steps)}`,
        )
      }
    }
  },
}

/** The first attempt of a webhook has been recorded. */
const isRecorded = async (stage: Stage, id: string): Promise<boolean> =>
  (await stage.sql.number(
    `SELECT COUNT(*) FROM deliveries d WHERE d.webhook_id = ? AND d.event_type <> 'ping'
       AND (d.status <> 'pending' OR d.attempt_count > 0)`,
    [id],
  )) > 0

/** What is wrong when nothing of a webhook is under way any more; undefined if that comes to be right. */
const atRest = async (
  stage: Stage,
  id: string,
  endpoints: Endpoint[],
  mustArrive: boolean,
): Promise<string | undefined> => {
  let found: string | undefined
  // A process that sweeps finds what another has left to it within 10 s.
  await within(SWEPT_WITHIN_MS, async () => {
    const leased = 'SELECT COUNT(*) FROM delivery_queue WHERE webhook_id = ? AND (lease IS NOT NULL OR due_at < ?)'
    if ((await stage.sql.number(leased, [id, Date.now() + 10_000])) > 0) {
      found = 'it does not come to rest'
      return false
    }
    found = await wrongOf(
      stage,
      id,
      endpoints.flatMap(({ arrivals }) => arrivals),
      mustArrive,
    )
    return found === undefined
  })
  return found
}

const recoveredMeanwhile: Case = {
  name: 'recovered-meanwhile',
  says: 'Whatever statement a recovery stands at when an event comes, each event has one delivery not cancelled',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const stopped = await stage.server({ by, roles: 'api' })
    const other = await stage.server()
    const client = stage.client(other)
    const world: World = await stage.world(client)
    const endpoint = await stage.endpoint()
    const steps = await atEachStatement(by, {
      async prepare() {
        const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
        const since = new Date().toISOString()
        await wait(50)
        await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
        await world.submitMany(client, 3)
        await done(client(UPSERT_WEBHOOK, { id, status: 'active' }))
        return { id, since }
      },
      act: ({ id, since }) => stage.client(stopped)(RECOVER, { webhookId: id, since }),
      meanwhile: ({ id, since }) =>
        Promise.all([world.submitMany(client, 2), client(RECOVER, { webhookId: id, since })]),
      async check({ id, since }) {
        const wrong = await stage.sql.number(
          `SELECT COUNT(*) FROM events e WHERE e.type <> 'ping' AND e.created_at >= ? AND 1 <> (
             SELECT COUNT(*) FROM deliveries d
             WHERE d.event_id = e.id AND d.webhook_id = ? AND d.status <> 'cancelled')`,
          [Date.parse(since), id],
        )
        await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
        return wrong > 0 ? `${wrong} events have none, or two` : undefined
      },
    })
    stage.expect('each has one', steps.wrong.length === 0 && steps.steps > 0, shown(steps))
  },
}

export const betweenCases: Case[] = [
  pausedThenUrl,
  oldPause,
  claimInDoubt,
  settleInDoubt,
  pingTakenOver,
  connectedLate,
  interrupted,
  recoveredMeanwhile,
]
