import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { createRemoteJWKSet, jwtVerify } from 'jose'
import { rows } from '../../server/database/connect.ts'
import type { DeliveryLoop } from '../../server/delivery/loop.ts'
import { version } from '../../shared/version.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { type Fixture, startFixture } from './fixture.ts'

const SECOND = 1000
const HOUR = 3600 * SECOND
const WAITS = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560]

describeEachEngine('the acknowledgement table', engine => {
  const clock = testClock(Math.ceil(Date.now() / SECOND) * SECOND)
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  after(() => fixture?.stop())

  /** One loop, one receiver and one webhook for it. */
  const withWebhook = async (
    answer: (n: number) => Answer,
    work: (given: { loop: DeliveryLoop; receiver: Receiver; webhookId: string }) => Promise<void>,
  ): Promise<void> => {
    const receiver = await startReceiver({ answer: (_request, n) => answer(n) })
    try {
      const loop = await fixture.startLoop()
      await work({ loop, receiver, webhookId: await fixture.webhook(receiver.url) })
    } finally {
      await receiver.close()
      await fixture.reset()
    }
  }

  for (const status of [200, 202, 299]) {
    it(`${status} is delivered, and sent once`, () =>
      withWebhook(
        () => ({ status, body: 'thanks' }),
        async ({ loop, receiver, webhookId }) => {
          await fixture.emit()
          await loop.idle()
          const delivery = await fixture.delivery(webhookId)
          assert.equal(delivery.status, 'delivered')
          assert.equal(delivery.attempt_count, 1)
          assert.equal(delivery.next_attempt_at, null)
          assert.notEqual(delivery.finished_at, null)
          const [attempt] = await fixture.attempts(delivery.id)
          assert.equal(attempt!.status_code, status)
          assert.equal(attempt!.response, 'thanks')
          assert.equal(receiver.requests.length, 1)
          assert.equal(await fixture.count('delivery_queue'), 0)
        },
      ))
  }

  for (const status of [400, 401, 404, 410, 422, 499]) {
    it(`${status} is rejected, and not retried`, () =>
      withWebhook(
        () => ({ status }),
        async ({ loop, receiver, webhookId }) => {
          await fixture.emit()
          await loop.idle()
          clock.advance(24 * HOUR)
          await loop.idle()
          assert.equal((await fixture.delivery(webhookId)).status, 'rejected')
          assert.equal((await fixture.webhookRow(webhookId)).status, 'active')
          assert.equal(receiver.requests.length, 1)
        },
      ))
  }

  for (const answer of [{ status: 500 }, { status: 503 }, { status: 302 }, 'reset', 'malformed'] as Answer[]) {
    it(`${JSON.stringify(answer)} is retried after 5, 10, 20 … 2560 s and then dropped`, () =>
      withWebhook(
        () => answer,
        async ({ loop, receiver, webhookId }) => {
          await fixture.emit()
          await loop.idle()
          for (const [index, seconds] of WAITS.entries()) {
            const delivery = await fixture.delivery(webhookId)
            assert.equal(delivery.status, 'pending')
            assert.equal(delivery.attempt_count, index + 1)
            const last = (await fixture.attempts(delivery.id)).at(-1)!
            assert.equal(delivery.next_attempt_at! - last.started_at - last.duration_ms!, seconds * SECOND)
            // Not a millisecond sooner.
            clock.set(delivery.next_attempt_at! - 1)
            await loop.idle()
            assert.equal(receiver.requests.length, index + 1)
            clock.advance(1)
            await loop.idle()
            assert.equal(receiver.requests.length, index + 2)
          }
          const delivery = await fixture.delivery(webhookId)
          assert.equal(delivery.status, 'dropped')
          assert.equal(delivery.attempt_count, 11)
          clock.advance(24 * HOUR)
          await loop.idle()
          assert.equal(receiver.requests.length, 11)
          assert.equal(await fixture.count('delivery_queue'), 0)
        },
      ))
  }

  it('nobody listening is retried like a 5XX', () =>
    withWebhook(
      () => ({ status: 200 }),
      async ({ loop, receiver, webhookId }) => {
        await receiver.close()
        await fixture.emit()
        await loop.idle()
        const delivery = await fixture.delivery(webhookId)
        const [attempt] = await fixture.attempts(delivery.id)
        assert.equal(attempt!.failure, 'connection_refused')
        assert.equal(delivery.next_attempt_at! - attempt!.started_at - attempt!.duration_ms!, 5 * SECOND)
        clock.set(delivery.next_attempt_at!)
        await loop.idle()
        assert.equal((await fixture.delivery(webhookId)).attempt_count, 2)
      },
    ))

  for (const form of ['seconds', 'date'] as const) {
    it(`429 with Retry-After in ${form} is sent again then, and counts as no failure`, () => {
      const retryAfter = () => (form === 'seconds' ? '120' : new Date(clock.now() + 120 * SECOND).toUTCString())
      return withWebhook(
        n => (n <= 2 ? { status: 429, headers: { 'retry-after': retryAfter() } } : { status: n === 3 ? 500 : 200 }),
        async ({ loop, receiver, webhookId }) => {
          // An HTTP-date has whole seconds.
          clock.set(Math.ceil(clock.now() / SECOND) * SECOND)
          await fixture.emit()
          await loop.idle()
          for (const sent of [1, 2]) {
            const held = await fixture.delivery(webhookId)
            const attempt = (await fixture.attempts(held.id)).at(-1)!
            assert.equal(held.next_attempt_at! - attempt.started_at - attempt.duration_ms!, 120 * SECOND)
            assert.equal(attempt.retry_after, held.next_attempt_at)
            clock.set(held.next_attempt_at! - 1)
            await loop.idle()
            assert.equal(receiver.requests.length, sent)
            clock.set(Math.ceil((held.next_attempt_at! + 1) / SECOND) * SECOND)
            await loop.idle()
            assert.equal(receiver.requests.length, sent + 1)
          }
          const failed = await fixture.delivery(webhookId)
          const third = (await fixture.attempts(failed.id)).at(-1)!
          assert.equal(failed.next_attempt_at! - third.started_at - third.duration_ms!, 5 * SECOND)
          assert.equal((await fixture.webhookRow(webhookId)).status, 'active')
          clock.set(failed.next_attempt_at!)
          await loop.idle()
          assert.equal((await fixture.delivery(webhookId)).status, 'delivered')
        },
      )
    })
  }

  it('429 with Retry-After holds the whole webhook until then, and no other', () =>
    withWebhook(
      n => (n === 1 ? { status: 429, headers: { 'retry-after': '60' } } : { status: 200 }),
      async ({ loop, receiver, webhookId }) => {
        const other = await startReceiver()
        try {
          await fixture.emit()
          await loop.idle()
          const { held_until } = await fixture.webhookRow(webhookId)
          const otherId = await fixture.webhook(other.url)
          await fixture.emit(3)
          await loop.idle()
          assert.equal(receiver.requests.length, 1)
          assert.equal((await fixture.deliveries(otherId)).filter(each => each.status === 'delivered').length, 3)
          clock.set(held_until! - 1)
          await loop.idle()
          assert.equal(receiver.requests.length, 1)
          clock.set(held_until!)
          await loop.idle()
          assert.equal(receiver.requests.length, 5)
          const all = await fixture.deliveries(webhookId)
          assert.deepEqual([...new Set(all.map(each => each.status))], ['delivered'])
          // What was only held back has been attempted once.
          assert.deepEqual(all.map(each => each.attempt_count).toSorted(), [1, 1, 1, 2])
        } finally {
          await other.close()
        }
      },
    ))

  it('429 with a Retry-After of a month is asked again after 24 hours', () =>
    withWebhook(
      () => ({ status: 429, headers: { 'retry-after': String(30 * 24 * 3600) } }),
      async ({ loop, webhookId }) => {
        await fixture.emit()
        await loop.idle()
        const delivery = await fixture.delivery(webhookId)
        const [attempt] = await fixture.attempts(delivery.id)
        assert.equal(delivery.next_attempt_at! - attempt!.started_at - attempt!.duration_ms!, 24 * HOUR)
      },
    ))

  it('429 with Retry-After for 72 hours is dropped then', () =>
    withWebhook(
      () => ({ status: 429, headers: { 'retry-after': String(23 * 3600) } }),
      async ({ loop, receiver, webhookId }) => {
        await fixture.emit()
        await loop.idle()
        for (const attempts of [1, 2, 3, 4]) {
          const delivery = await fixture.delivery(webhookId)
          assert.equal(delivery.status, 'pending', `after ${attempts} attempts`)
          clock.set(delivery.next_attempt_at!)
          await loop.idle()
        }
        // 0, 23, 46, 69 and 92 hours after the first.
        assert.equal(receiver.requests.length, 5)
        assert.equal((await fixture.delivery(webhookId)).status, 'dropped')
        assert.equal((await fixture.webhookRow(webhookId)).status, 'active')
      },
    ))

  for (const [name, headers] of [
    ['without Retry-After', {}],
    ['with a Retry-After that cannot be read', { 'retry-after': 'soon' }],
  ] as const) {
    it(`429 ${name} sets the webhook to inactive, cancels what is pending, and nothing is queued meanwhile`, () =>
      withWebhook(
        n => (n === 1 ? { status: 500 } : { status: 429, headers }),
        async ({ loop, receiver, webhookId }) => {
          await fixture.emit()
          await loop.idle()
          await fixture.emit()
          await loop.idle()
          const webhook = await fixture.webhookRow(webhookId)
          assert.equal(webhook.status, 'inactive')
          assert.match(webhook.status_reason!, /429/)
          const all = await fixture.deliveries(webhookId)
          assert.deepEqual(
            all.map(({ status, next_attempt_at }) => [status, next_attempt_at]),
            [
              ['cancelled', null],
              ['cancelled', null],
            ],
          )
          await fixture.emit()
          clock.advance(24 * HOUR)
          await loop.idle()
          assert.equal(receiver.requests.length, 2)
          assert.equal((await fixture.deliveries(webhookId)).length, 2)
          // The three, and the one that tells of it.
          assert.equal(await fixture.count('events'), 4)
          assert.equal(await fixture.count('delivery_queue'), 0)
        },
      ))
  }
})

describeEachEngine('a delivery of a real server', engine => {
  const clock = testClock()
  let server: TestServer
  let receiver: Receiver
  let project: Awaited<ReturnType<typeof addProject>>
  let webhookId: string
  before(async () => {
    server = await startTestServer(engine, { clock, env: { TIDINGS_RETRY_SCHEDULE: '5,10' } })
    receiver = await startReceiver({
      answer: ({ body }, n) => ({ status: body.eventType === 'ping' || n === 4 ? 200 : 503 }),
    })
    project = await addProject(server.database)
    const { data } = await server.graphql('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
      url: `${receiver.url}?tenant=1`,
    })
    webhookId = data.createWebhook.id
    await server.graphql(
      'mutation ($p: UUID!, $u: UUID!) { submitProjectReport(projectId: $p, quarter: "2026-3", submitterId: $u) ' +
        '{ id } }',
      { p: project.projectId, u: project.userId },
    )
    await receiver.waitFor(all => all.length === 2)
    for (const n of [3, 4]) {
      await untilRetryIsDue(server, clock, n - 2)
      await receiver.waitFor(all => all.length === n)
    }
  })
  after(async () => {
    await receiver?.close()
    await server?.stop()
  })

  it('has body and headers exactly as specified', async () => {
    const [, first] = receiver.requests
    const delivery = await server.database.knex('deliveries').where({ event_type: first!.body.eventType }).first()
    assert.equal(first!.method, 'POST')
    assert.equal(first!.path, '/webhook?tenant=1')
    assert.equal(first!.headers['content-type'], 'application/json')
    assert.equal(first!.headers['user-agent'], `Tidings/${version}`)
    assert.match(first!.headers.authorization!, /^Bearer [\w-]+\.[\w-]+\.[\w-]+$/)
    assert.deepEqual(Object.keys(first!.body), ['webhookId', 'eventId', 'eventType', 'eventTime', 'payload'])
    const { projectReport } = first!.body.payload
    assert.match(first!.body.eventTime, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$/)
    assert.deepEqual(first!.body, {
      webhookId,
      eventId: delivery.id,
      eventType: 'project_report_quarterly_submitted',
      eventTime: first!.body.eventTime,
      payload: {
        projectReport: {
          id: projectReport.id,
          projectId: project.projectId,
          quarter: '2026-3',
          submitterId: project.userId,
          submitterName: 'Ada Okafor',
        },
      },
    })
  })

  it('says the same event id, time and body at each attempt', () => {
    const [, ...attempts] = receiver.requests
    assert.equal(attempts.length, 3)
    assert.equal(new Set(attempts.map(each => each.rawBody)).size, 1)
  })

  it('carries a fresh token at each attempt, which jose verifies from the JWKS endpoint alone', async () => {
    const keys = createRemoteJWKSet(new URL('/.well-known/jwks.json', server.url))
    const [, ...attempts] = receiver.requests
    const times = await Promise.all(
      attempts.map(async ({ headers, body }) => {
        const token = headers.authorization!.replace('Bearer ', '')
        const { payload, protectedHeader } = await jwtVerify(token, keys, {
          issuer: server.url,
          audience: `${receiver.url}?tenant=1`,
          algorithms: ['EdDSA'],
          currentDate: new Date(clock.now()),
        })
        assert.deepEqual(Object.keys(protectedHeader).toSorted(), ['alg', 'kid', 'typ'])
        assert.equal(payload.jti, body.eventId)
        assert.equal(payload.exp! - payload.iat!, 300)
        return payload.iat!
      }),
    )
    assert.ok(times[1]! - times[0]! >= 5 && times[2]! - times[1]! >= 10, `issued at ${times}`)
  })

  it('shows its attempts in the API as they were', async () => {
    await eventually(
      'an empty queue',
      () => server.database.knex('delivery_queue'),
      queue => queue.length === 0,
    )
    const { data } = await server.graphql(
      '{ deliveries(query: {selector: {eventType: "project_report_quarterly_submitted"}}) ' +
        '{ status attemptCount nextAttemptAt attempts { number statusCode } } }',
    )
    assert.deepEqual(data.deliveries, [
      {
        status: 'delivered',
        attemptCount: 3,
        nextAttemptAt: null,
        attempts: [
          { number: 1, statusCode: 503 },
          { number: 2, statusCode: 503 },
          { number: 3, statusCode: 200 },
        ],
      },
    ])
  })
})

type QueueRow = { due_at: number; failure_count: number; lease: string | null }

/** Moves the clock to where the one pending delivery is due, once `failures` have been recorded. */
const untilRetryIsDue = async (server: TestServer, clock: ReturnType<typeof testClock>, failures: number) => {
  const isWaiting = ({ failure_count, lease }: QueueRow) => failure_count === failures && lease === null
  const queue = await eventually(
    `a delivery to wait for its next attempt after ${failures} failures`,
    () => rows<QueueRow>(server.database.knex, 'SELECT * FROM delivery_queue'),
    queue => queue.some(isWaiting),
  )
  clock.set(queue.find(isWaiting)!.due_at)
}

describe('a loop without the role delivery', () => {
  it('makes its own pings and nothing else', async () => {
    const clock = testClock()
    const server = await startTestServer('sqlite', { clock, env: { TIDINGS_ROLES: 'api' } })
    const receiver = await startReceiver()
    try {
      const project = await addProject(server.database)
      const { data } = await server.graphql('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
        url: receiver.url,
      })
      await server.graphql(
        'mutation ($p: UUID!, $u: UUID!) { submitProjectReport(projectId: $p, quarter: "2026-3", submitterId: ' +
          '$u) { id } }',
        { p: project.projectId, u: project.userId },
      )
      const { data: pinged } = await server.graphql(
        'mutation ($id: UUID!) { pingWebhook(id: $id) { status attemptCount } }',
        { id: data.createWebhook.id },
      )
      assert.deepEqual(pinged.pingWebhook, { status: 'delivered', attemptCount: 1 })
      assert.deepEqual(
        receiver.requests.map(each => each.body.eventType),
        ['ping', 'ping'],
      )
    } finally {
      await receiver.close()
      await server.stop()
    }
  })
})
