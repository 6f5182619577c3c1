import { setTimeout as wait } from 'node:timers/promises'
import type { DatabaseProxy } from '../proxy.ts'
import { type Client, done } from '../stage/client.ts'
import type { Arrival, Endpoint } from '../stage/endpoint.ts'
import { atMost, gate, type Stage, SUBMIT, times, UPSERT_PROJECT, until, untilSettled } from '../stage/stage.ts'
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

/** More than a process of 32 sends at once to one webhook: of some, what has its turn waits in memory. */
const PROJECTS = 16

const stalled: Case = {
  name: 'order-stalled',
  says: 'A process that stood still past its lease sends nothing of a project after what came next',
  engines: SHARED,
  async run(stage) {
    const frozen = await stage.server({ env: { TIDINGS_CONCURRENCY: '32' } })
    const client = stage.client(frozen)
    const world = await stage.world(client)
    const { organisationId } = world.projects[0]!
    const projectIds = await times(
      PROJECTS,
      async n => (await done(client(UPSERT_PROJECT, { organisationId, name: `Ordered ${n}` }))).id,
    )
    const submitEach = (by: Client, quarter: string) =>
      times(PROJECTS, n => done(by(SUBMIT, { projectId: projectIds[n]!, quarter, submitterId: world.userId })))
    const woken = gate()
    let isFrozen = false
    const endpoint = await stage.endpoint(async () => {
      // One is answered: of what is for an endpoint that answers nothing, nothing waits in memory for long.
      if (!isFrozen && endpoint.arrivals.length !== 4) await woken.opened
      return { status: 200 }
    })
    const { id } = await done(client(CREATE_ORDERED, { url: endpoint.url }))
    for (const quarter of ['3000-1', '3000-2']) await submitEach(client, quarter)
    const unanswered = () => endpoint.arrivals.filter(({ answeredAt }) => answeredAt === undefined)
    const leased = () => stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE lease IS NOT NULL')
    let waiting = 0
    await until('some that have their turn wait in memory', async () => {
      waiting = (await leased()) - unanswered().length
      return endpoint.arrivals.length > 4 && waiting > 0
    })
    frozen.signal('SIGSTOP')
    await wait(1_000)
    const inHand = new Set(unanswered().map(arrival => arrival.id))
    stage.say(`it stands still with ${inHand.size} requests in its hands, and ${waiting} in its memory`)
    isFrozen = true
    const heir = await stage.server()
    await untilSettled(stage)
    woken.open()
    frozen.signal('SIGCONT')
    await wait(3_000)
    await untilSettled(stage)
    await submitEach(stage.client(heir), '3000-3')
    await untilSettled(stage)
    const came = [...endpoint.byId()]
    const wrong = came.filter(([one, arrivals]) => arrivals.length !== (inHand.has(one) ? 2 : 1))
    stage.expect(
      'only what it had in its hands came twice',
      wrong.length === 0 && came.length === 3 * PROJECTS,
      `${wrong.length} of ${came.length} came more or less often`,
    )
    await expectOrder(stage, id, endpoint)
  },
}

const LAG_MS = 300
/** A mutation waits so long for a lock, and is refused. */
const WAITS_FOR_LOCK_MS = 10_000

/** From now on the clock of a process is behind, which takes what the database says for half as old as it is. */
const lag = async (by: DatabaseProxy): Promise<never> => {
  for (;;) {
    const hold = by.hold(/TIMESTAMPDIFF/, { answer: true })
    await hold.caught
    await wait(2 * LAG_MS)
    hold.end()
  }
}

const slowCommit: Case = {
  name: 'order-slow-commit',
  says:
    'While the change of a project waits for its commit, the next of that project waits for it, others do not; ' +
    'and their events arrive in the order of the commits, and have the times of that order, also by a clock that is ' +
    'behind',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    lag(by)
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_ORDERED, { url: endpoint.url }))
    await world.submitMany(client, 2)
    await untilSettled(stage)
    // The next of this project is not tried in a group, whose transaction would be committed first.
    await done(world.submit(slow))
    const hold = by.hold(/^\s*COMMIT/i, { times: 1 })
    const first = world.submit(slow)
    await until('a commit is slow', () => hold.count() === 1)
    const second = world.submit(client)
    const ofAnother = await atMost(WAITS_FOR_LOCK_MS - 1_000, world.submit(client, 1))
    const fate = ofAnother ? (ofAnother.code ?? 'done') : 'it waits'
    stage.expect('another project does not wait', fate === 'done', fate)
    stage.expect('the next of the project does', (await atMost(500, second)) === undefined, 'it waits')
    hold.end()
    for (const { code } of [await first, await second]) stage.say(code ?? 'done')
    await done(world.submit(slow))
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
