import { setTimeout as wait } from 'node:timers/promises'
import { type Client, done } from '../stage/client.ts'
import type { Arrival, Endpoint } from '../stage/endpoint.ts'
import { atMost, gate, type Stage, times, until, untilSettled } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// With `ordering: project` the events of one project arrive one after the other, in the order they happened.

const CREATE_ORDERED = `mutation ($url: String!) { createWebhook(url: $url, ordering: project) { id } }`
const CREATE_LOOSE = 'mutation ($url: String!) { createWebhook(url: $url) { id } }'
const ORDER = 'mutation ($id: UUID!) { upsertWebhook(id: $id, ordering: project) { id } }'

/**
 * The faults of a webhook's order of arrivals: a delivery that arrives after the first arrival of its successor, or
 * before the last answer of its predecessor.
 */
const disorder = async (stage: Stage, webhookId: string, endpoint: Endpoint): Promise<string[]> => {
  const made = await stage.sql.rows<{ id: string; project_id: string; created_at: number; event_id: string }>(
    `SELECT d.id, e.project_id, e.created_at, e.id AS event_id FROM deliveries d JOIN events e ON e.id = d.event_id
     WHERE d.webhook_id = ? AND e.project_id IS NOT NULL ORDER BY e.created_at, e.id`,
    [webhookId],
  )
  const arrivals = endpoint.byId()
  const firstOf = (id: string): Arrival | undefined => arrivals.get(id)?.[0]
  const lastOf = (id: string): Arrival | undefined => arrivals.get(id)?.at(-1)
  return [...Map.groupBy(made, row => row.project_id).values()].flatMap(line =>
    line.slice(1).flatMap((next, n) => {
      const [before, after] = [lastOf(line[n]!.id), firstOf(next.id)]
      if (line[n]!.created_at >= next.created_at) return [`${next.id} has no later time than ${line[n]!.id}`]
      if (before && after && (before.answeredAt ?? before.at) <= after.at) return []
      return [`${next.id} came ${after?.at ?? 'never'}, ${line[n]!.id} last ${before?.at ?? 'never'}`]
    }),
  )
}

const expectOrder = async (stage: Stage, webhookId: string, endpoint: Endpoint): Promise<void> => {
  const wrong = await disorder(stage, webhookId, endpoint)
  stage.expect(
    'each event came when the one before had come to its end',
    wrong.length === 0,
    wrong.length === 0 ? `${endpoint.arrivals.length} requests` : wrong.slice(0, 5).join('; '),
  )
}

const killed: Case = {
  name: 'order-killed',
  says:
    'The events of each project arrive in their order where three processes commit and send them, two are killed, ' +
    'and a third of the first attempts fail',
  engines: SHARED,
  async run(stage) {
    const servers = [await stage.server(), await stage.server(), await stage.server()]
    const clients = servers.map(server => stage.client(server))
    const world = await stage.world(clients[0]!)
    let n = 0
    const endpoint = await stage.endpoint((_arrival, before) =>
      before === 0 && n++ % 3 === 0 ? { status: 500, afterMs: 20 } : { status: 200, afterMs: 10 },
    )
    const { id } = await done(clients[0]!(CREATE_ORDERED, { url: endpoint.url }))
    const count = stage.size(90)
    const submitting = times(
      count,
      async n => {
        // A killed process has answered nobody, so its requests may or may not have been done.
        await world.submit(clients[n % 3]!, n % 3).catch(() => undefined)
        if (n === Math.floor(count / 3)) servers[2]!.signal('SIGKILL')
        if (n === Math.floor((2 * count) / 3)) servers[1]!.signal('SIGKILL')
      },
      6,
    )
    await submitting
    await untilSettled(stage, 180_000)
    await expectOrder(stage, id, endpoint)
    const left = await stage.sql.number('SELECT COUNT(*) FROM ordered_deliveries')
    stage.expect('nobody waits for a turn', left === 0, `${left} wait`)
  },
}

const stalled: Case = {
  name: 'order-stalled',
  says: 'A process that stood still past its lease sends nothing of a project after what came next',
  engines: SHARED,
  async run(stage) {
    const frozen = await stage.server()
    const client = stage.client(frozen)
    const world = await stage.world(client)
    const answered = gate()
    const endpoint = await stage.endpoint(async (_arrival, before) => {
      if (before === 0 && endpoint.arrivals.length === 1) await answered.opened
      return { status: 200 }
    })
    await done(client(CREATE_ORDERED, { url: endpoint.url }))
    await world.submitMany(client, 3)
    await until('the first has arrived', () => endpoint.arrivals.length === 1)
    frozen.signal('SIGSTOP')
    const heir = await stage.server()
    await until('the heir has sent all', () => endpoint.arrivals.length === 4, 90_000)
    answered.open()
    frozen.signal('SIGCONT')
    await wait(3_000)
    await untilSettled(stage)
    await world.submitMany(stage.client(heir), 2)
    await untilSettled(stage)
    const came = [...endpoint.byId().values()].map(list => list.length)
    stage.expect('only the first came twice', came.join() === '2,1,1,1,1', came.join())
    const order = endpoint.arrivals.map(arrival => arrival.id)
    const lastOfFirst = order.lastIndexOf(order[0]!)
    stage.expect(
      'nothing of the first came after the second',
      lastOfFirst === 1,
      `its last was number ${lastOfFirst + 1}`,
    )
  },
}

const slowCommit: Case = {
  name: 'order-slow-commit',
  says:
    'While the change of a project waits for its commit, the next of that project waits for it, others do not; ' +
    'and their events arrive in the order of the commits',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_ORDERED, { url: endpoint.url }))
    await world.submitMany(client, 2)
    await untilSettled(stage)
    const hold = by.hold(/^\s*COMMIT/i, { times: 1 })
    const first = world.submit(slow)
    await until('a commit is slow', () => hold.count() === 1)
    const second = world.submit(client)
    const ofAnother = await atMost(2_000, world.submit(client, 1))
    stage.expect('another project does not wait', ofAnother?.code === undefined, ofAnother?.code ?? 'done')
    stage.expect('the next of the project does', (await atMost(500, second)) === undefined, 'it waits')
    hold.end()
    for (const { code } of [await first, await second]) stage.say(code ?? 'done')
    await untilSettled(stage)
    await expectOrder(stage, id, endpoint)
  },
}

const changed: Case = {
  name: 'order-changed',
  says: 'What happens after a webhook was told to keep the order of projects waits for what is pending of its project',
  engines: ALL,
  async run(stage) {
    const client: Client = stage.client(await stage.server())
    const world = await stage.world(client)
    let fails = true
    const endpoint = await stage.endpoint(() => ({ status: fails ? 500 : 200 }))
    const { id } = await done(client(CREATE_LOOSE, { url: endpoint.url }))
    await world.submitMany(client, 1)
    await until('it has come once', () => endpoint.arrivals.length > 0)
    await done(client(ORDER, { id }))
    await world.submitMany(client, 1)
    await until('it has come twice', () => endpoint.arrivals.length > 1)
    fails = false
    await untilSettled(stage)
    await expectOrder(stage, id, endpoint)
  },
}

export const orderCases: Case[] = [killed, stalled, slowCommit, changed]
