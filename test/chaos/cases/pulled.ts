import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import type { TakenDelivery } from '../../../receiver/pulling.ts'
import { type Answer, type Client, done } from '../stage/client.ts'
import type { Endpoint } from '../stage/endpoint.ts'
import type { Server } from '../stage/processes.ts'
import { type Stage, UPSERT_WEBHOOK, until, untilSettled } from '../stage/stage.ts'
import { atEachStatement, shown } from '../stage/steps.ts'
import { ALL, type Case, SHARED } from './case.ts'

// What only clients do that pull: they take, hold and answer, and die and freeze meanwhile. That they are served like
// endpoints say the cases about endpoints, with clients in place of these: `pulled` in `case.ts`.

const CREATE = `mutation ($id: UUID!, $ordering: WebhookOrdering) {
  upsertWebhook(id: $id, transport: pull, ordering: $ordering) { id } }`
const TAKE = `mutation ($id: UUID!, $limit: Int, $waitSeconds: Int) {
  takeDeliveries(webhookId: $id, limit: $limit, waitSeconds: $waitSeconds) {
    deliveryId attempt headers body leaseUntil } }`
const ANSWER = `mutation ($answers: [DeliveryAnswer!]!) {
  answerDeliveries(answers: $answers) { deliveryId attempt counted reason } }`

type Counted = { deliveryId: string; attempt: number; counted: boolean; reason: string | null }

const take = (client: Client, id: string, limit = 100, waitSeconds = 0): Promise<Answer> =>
  client(TAKE, { id, limit, waitSeconds })
const takenBy = ({ data }: Answer): TakenDelivery[] => data?.takeDeliveries ?? []
const answer = (client: Client, taken: TakenDelivery[], status = 200): Promise<Answer> =>
  client(ANSWER, { answers: taken.map(({ deliveryId, attempt }) => ({ deliveryId, attempt, status })) })
const countedBy = ({ data }: Answer): Counted[] => data?.answerDeliveries ?? []

/** A pulled webhook, whose ping this client has answered. */
const createPulled = async (client: Client, given: { ordering?: string } = {}): Promise<string> => {
  const id = randomUUID()
  const pinged = take(client, id, 1, 15).then(answered => answer(client, takenBy(answered)))
  await done(client(CREATE, { id, ...given }))
  await pinged
  return id
}

/** How many attempts there were of each result, without pings. */
const attemptsOf = async (stage: Stage): Promise<Map<string, number>> => {
  const found = await stage.sql.rows<{ what: string; count: number }>(
    `SELECT COALESCE(failure, status_code) AS what, COUNT(*) AS count FROM attempts a
     JOIN deliveries d ON d.id = a.delivery_id WHERE d.event_type <> 'ping' GROUP BY what`,
  )
  return new Map(found.map(({ what, count }) => [String(what), Number(count)]))
}

const told = (attempts: Map<string, number>): string =>
  [...attempts].map(([what, count]) => `${count} × ${what}`).join(', ')

/** A process that pulls, and passes on to an endpoint what it takes: `tidings listen --pull`. */
const startPuller = (stage: Stage, server: Server, webhookId: string, endpoint: Endpoint) =>
  stage.cli(server, ['listen', '--pull', '--webhook-id', webhookId, '--forward', endpoint.url])

const LEASE_MS = 30_000

const pullerGone = (name: string, what: string, signal: 'SIGKILL' | 'SIGSTOP'): Case => ({
  name,
  says: `What a client held that ${what} is a timeout after its lease, another has it, and all is delivered once`,
  engines: ALL,
  async run(stage) {
    const count = 20
    const server = await stage.server()
    const client = stage.client(server)
    const world = await stage.world(client)
    const id = await createPulled(client)
    let isFirst = true
    const endpoint = await stage.endpoint(() => (isFirst ? { status: 200, afterMs: 60_000 } : { status: 200 }))
    const first = startPuller(stage, server, id, endpoint)
    await world.submitMany(client, count)
    // It works at ten at once, and takes no more.
    const held = 10
    await until('it holds all that it has leased', async () => {
      const leased = await stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE lease IS NOT NULL')
      return leased === held && endpoint.arrivals.length === held
    })
    const goneAt = Date.now()
    first.signal(signal)
    isFirst = false
    startPuller(stage, server, id, endpoint)
    await untilSettled(stage)
    const settledMs = Date.now() - goneAt
    if (signal === 'SIGSTOP') {
      first.signal('SIGCONT')
      await wait(3_000)
    }
    const attempts = await attemptsOf(stage)
    const delivered = await stage.sql.number(
      "SELECT COUNT(*) FROM deliveries WHERE status = 'delivered' AND event_type <> 'ping'",
    )
    stage.expect('all is delivered', delivered === count, `${delivered} of ${count} delivered`)
    stage.expect(
      'what it held is a timeout each, and nothing else is repeated',
      attempts.get('timeout') === held && attempts.get('200') === count && endpoint.arrivals.length === count + held,
      `${told(attempts)}; it held ${held}, ${endpoint.arrivals.length} arrived`,
    )
    stage.expect('another has it soon after the lease', settledMs < LEASE_MS + 10_000, `settled ${settledMs} ms after`)
  },
})

const serverGone: Case = {
  name: 'pull-server-killed',
  says: 'Clients whose servers are killed between take and answer answer to another, and nothing is lost or repeated',
  engines: SHARED,
  async run(stage) {
    const count = 60
    const [first, second] = [await stage.server(), await stage.server()]
    const other = stage.client(second)
    const world = await stage.world(other)
    const id = await createPulled(other)
    await world.submitMany(other, count)
    const held = takenBy(await take(stage.client(first), id, count))
    first.signal('SIGKILL')
    await first.ended
    const answered = countedBy(await answer(other, held))
    await untilSettled(stage)
    const attempts = await attemptsOf(stage)
    stage.expect(
      'each answer counts, and each is attempted once',
      answered.every(({ counted }) => counted) && held.length === count && attempts.get('200') === count,
      `${answered.filter(({ counted }) => counted).length} of ${held.length} count; ${told(attempts)}`,
    )
  },
}

const twoClients: Case = {
  name: 'pull-two-clients',
  says: 'Two clients never hold the same delivery, whatever statement of the database the first stands at',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const other = stage.client(await stage.server())
    const world = await stage.world(other)
    const count = 6
    const steps = await atEachStatement(by, {
      async prepare() {
        const id = await createPulled(other)
        await world.submitMany(other, count)
        return id
      },
      act: id => take(slow, id, count - 1),
      meanwhile: id => take(other, id, count - 1),
      async check(id, { acted, happened }) {
        const [mine, others] = [takenBy(acted as Answer), takenBy(happened as Answer)]
        const both = mine.filter(one => others.some(({ deliveryId }) => deliveryId === one.deliveryId))
        await answer(other, [...mine, ...others])
        const rest = takenBy(await take(other, id))
        if (rest.length > 0) await answer(other, rest)
        await done(other(UPSERT_WEBHOOK, { id, status: 'disabled' }))
        if (both.length > 0) return `both hold ${both.length}`
        const sum = mine.length + others.length + rest.length
        return sum === count ? undefined : `${sum} of ${count} were taken`
      },
    })
    stage.expect('no delivery is taken by both', steps.wrong.length === 0, shown(steps))
  },
}

const ended: Case = {
  name: 'pull-ended',
  says: 'Once a webhook is disabled, nothing of it is taken, whatever statement the client’s request stands at',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const other = stage.client(await stage.server())
    const world = await stage.world(other)
    const steps = await atEachStatement(by, {
      async prepare() {
        const id = await createPulled(other)
        await done(world.submit(other))
        return id
      },
      act: id => take(slow, id),
      meanwhile: id => done(other(UPSERT_WEBHOOK, { id, status: 'disabled' })),
      async check(id, { acted, hadHappened }) {
        const taken = takenBy(acted as Answer)
        const [{ status }] = (await stage.sql.rows<{ status: string }>(
          "SELECT status FROM deliveries WHERE webhook_id = ? AND event_type <> 'ping'",
          [id],
        )) as [{ status: string }]
        const left = await stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE webhook_id = ?', [id])
        if (hadHappened && taken.length > 0) return 'taken after it was disabled'
        if (left > 0 || status !== 'cancelled') return `it is ${status}, ${left} left in the queue`
        const attempts = await stage.sql.number(
          `SELECT COUNT(*) FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
           WHERE d.webhook_id = ? AND event_type <> 'ping'`,
          [id],
        )
        return attempts === taken.length ? undefined : `${attempts} attempts are logged of ${taken.length}`
      },
    })
    stage.expect('nothing is taken afterwards', steps.wrong.length === 0, shown(steps))
  },
}

const answeredTwice: Case = {
  name: 'pull-answered-twice',
  says: 'Of two answers to one attempt one counts, wherever the first one stands; the same again changes nothing',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const other = stage.client(await stage.server())
    const world = await stage.world(other)
    const id = await createPulled(other)
    const steps = await atEachStatement(by, {
      async prepare() {
        await done(world.submit(other))
        return takenBy(await take(other, id))
      },
      act: taken => answer(slow, taken, 422),
      meanwhile: taken => answer(other, taken, 200),
      async check(taken, { acted, happened }) {
        const [{ deliveryId }] = taken as [TakenDelivery]
        const [mine, others] = [countedBy(acted as Answer)[0], countedBy(happened as Answer)[0]]
        const [{ status }] = (await stage.sql.rows<{ status: string }>('SELECT status FROM deliveries WHERE id = ?', [
          deliveryId,
        ])) as [{ status: string }]
        const again = countedBy(await answer(other, taken, mine?.counted ? 422 : 200))[0]
        if (mine?.counted === others?.counted) return `both ${mine?.counted ? 'count' : 'do not count'}`
        const expected = mine?.counted ? 'rejected' : 'delivered'
        if (status !== expected) return `it is ${status}, and ${expected} counts`
        return again?.counted ? undefined : 'the same again does not count'
      },
    })
    stage.expect('one of them counts', steps.wrong.length === 0, shown(steps))
  },
}

const answeredAndEnded: Case = {
  name: 'pull-answered-ended',
  says: 'A 200 of a client counts, whatever statement it stands at when its webhook is disabled or redirected',
  engines: SHARED,
  async run(stage) {
    const endpoint = await stage.endpoint()
    for (const change of ['disabled', 'redirected'] as const) {
      const by = await stage.proxy()
      const slow = stage.client(await stage.server({ by, roles: 'api' }))
      const other = stage.client(await stage.server())
      const world = await stage.world(other)
      const steps = await atEachStatement(by, {
        async prepare() {
          const id = await createPulled(other)
          await done(world.submit(other))
          return { id, taken: takenBy(await take(other, id)) }
        },
        act: ({ taken }) => answer(slow, taken),
        meanwhile: ({ id }) =>
          change === 'disabled'
            ? done(other(UPSERT_WEBHOOK, { id, status: 'disabled' }))
            : done(other(REDIRECT, { id, url: endpoint.url })),
        async check({ id, taken }, { acted }) {
          await wait(300)
          const [{ status }] = (await stage.sql.rows<{ status: string }>('SELECT status FROM deliveries WHERE id = ?', [
            taken[0]!.deliveryId,
          ])) as [{ status: string }]
          const left = await stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE webhook_id = ?', [id])
          await done(other(UPSERT_WEBHOOK, { id, status: 'disabled' }))
          if (!countedBy(acted as Answer)[0]?.counted) return 'it does not count'
          if (status !== 'delivered' || left > 0) return `it is ${status}, ${left} left in the queue`
          return endpoint.byId().has(taken[0]!.deliveryId) ? 'it was sent as well' : undefined
        },
      })
      stage.expect(`it counts when the webhook is ${change}`, steps.wrong.length === 0, shown(steps))
    }
  },
}

const REDIRECT = `mutation ($id: UUID!, $url: String!) {
  upsertWebhook(id: $id, transport: push, url: $url) { id } }`

const outage: Case = {
  name: 'pull-outage',
  says: 'An answer that cannot be recorded is UNAVAILABLE, and counts when it is sent again under the same attempt',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const client = stage.client(await stage.server({ by }))
    const world = await stage.world(client)
    const id = await createPulled(client)
    await world.submitMany(client, 5)
    const taken = takenBy(await take(client, id))
    by.cut()
    by.hole()
    const refused = await answer(client, taken)
    by.mend()
    stage.expect('it is UNAVAILABLE', refused.code === 'UNAVAILABLE' && refused.status === 503, `${refused.code}`)
    await until('the database is back', async () => (await answer(client, taken)).code === undefined, 60_000)
    const again = countedBy(await answer(client, taken))
    const attempts = await attemptsOf(stage)
    stage.expect(
      'it counts once',
      again.every(({ counted }) => counted) && told(attempts) === '5 × 200',
      `${again.filter(({ counted }) => counted).length} of 5 count; ${told(attempts)}`,
    )
  },
}

const late: Case = {
  name: 'pull-late',
  says: 'A 200 after the lease delivers, also while another client holds the delivery, whose answer counts too',
  engines: ALL,
  async run(stage) {
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const id = await createPulled(client)
    await done(world.submit(client))
    const first = takenBy(await take(client, id))
    await stage.sql.run('UPDATE delivery_queue SET due_at = due_at - 30000')
    const second = takenBy(await take(client, id, 1, 20))
    const [counted] = countedBy(await answer(client, first))
    const status = async () =>
      (
        await stage.sql.rows<{ status: string }>('SELECT status FROM deliveries WHERE id = ?', [first[0]!.deliveryId])
      )[0]?.status
    stage.expect(
      'the late 200 counts',
      counted?.counted === true && (await status()) === 'delivered' && second[0]?.attempt === 2,
      `it is ${await status()}`,
    )
    const [other] = countedBy(await answer(client, second))
    const left = await stage.sql.number('SELECT COUNT(*) FROM delivery_queue')
    stage.expect('so does the second, and nothing is owed', other?.counted === true && left === 0, `${left} owed`)
  },
}

export const pulledCases: readonly Case[] = [
  pullerGone('pull-client-killed', 'was killed', 'SIGKILL'),
  pullerGone('pull-client-frozen', 'was frozen', 'SIGSTOP'),
  serverGone,
  twoClients,
  ended,
  answeredTwice,
  answeredAndEnded,
  outage,
  late,
]
