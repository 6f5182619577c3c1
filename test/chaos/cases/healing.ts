import type { DatabaseProxy } from '../proxy.ts'
import { type Client, done } from '../stage/client.ts'
import type { Endpoint } from '../stage/endpoint.ts'
import { fillEvents } from '../stage/filling.ts'
import type { Server } from '../stage/processes.ts'
import { PATIENCE_MS, type Stage, times, until, untilAnswered, untilSettled } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// A webhook that heals itself, in the hands of real processes that die, freeze, and wake. The waits of ten minutes and
// more pass by moving times in the database; a lease that ends does so in the same way.

const CREATE = `mutation ($url: String!) { createWebhook(url: $url, recovery: automatic) { id } }`
const CREATE_ORDERED = CREATE.replace('automatic)', 'automatic, ordering: project)')
const WHY = `query ($webhookId: UUID!, $eventId: UUID!) {
  explainDelivery(webhookId: $webhookId, eventId: $eventId) { verdict reasons { code } } }`
const HEALING = { roles: 'api,delivery,scheduler', env: { TIDINGS_RETRY_SCHEDULE: '0.1' } }
/** More than one page. */
const MISSED = 1_200

/** Moves the next ping, or the end of a lease, to now. */
const passTime = (stage: Stage): Promise<unknown> =>
  stage.sql.run('UPDATE webhook_recoveries SET due_at = 1 WHERE recovered_at IS NULL AND given_up_at IS NULL')

/** A lease ends when `passTime` ends it, and not because a question takes a minute on a machine that is full. */
const stopTime = (stage: Stage): Promise<unknown> =>
  stage.sql.run('UPDATE webhook_recoveries SET due_at = due_at + 3600000 WHERE lease IS NOT NULL')

const isHealed = async (stage: Stage): Promise<boolean> =>
  (await stage.sql.number('SELECT COUNT(*) FROM webhook_recoveries WHERE recovered_at IS NOT NULL')) === 1

/** A webhook whose endpoint is away until `returns`: one event was dropped, and many were never queued for it. */
const away = async (stage: Stage, client: Client, create = CREATE) => {
  let isBack = false
  const world = await stage.world(client)
  const endpoint = await stage.endpoint(() => ({ status: isBack ? 200 : 503 }))
  const { id } = await done(client(create, { url: endpoint.url }))
  await done(world.submit(client))
  await until('it is dropped', async () => (await stage.sql.number('SELECT COUNT(*) FROM webhook_recoveries')) === 1)
  const count = stage.size(MISSED)
  await fillEvents(stage.sql, { ...world.projects[0]!, count })
  const returns = () => {
    isBack = true
  }
  return { id: id as string, count, returns, world, endpoint }
}

type Away = Awaited<ReturnType<typeof away>>

/** Each missed event was acknowledged, and queued once by the healing. */
const expectHealed = async (stage: Stage, { id, count }: Away): Promise<void> => {
  // A hundred events are queued at a time, with a rest after each.
  await until('it is healed', () => isHealed(stage), 120_000 + 20 * count, 200)
  await untilSettled(stage)
  const missing = await stage.sql.number(
    `SELECT COUNT(*) FROM events e JOIN webhooks w ON w.id = ? AND w.created_at <= e.created_at
     WHERE e.type <> 'ping' AND e.about_webhook_id IS NULL AND NOT EXISTS (
       SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.webhook_id = w.id AND d.status = 'delivered')`,
    [id],
  )
  const twice = await stage.sql.number(
    `SELECT COUNT(*) FROM (SELECT event_id FROM deliveries
     WHERE webhook_id = ? AND status = 'delivered' GROUP BY event_id HAVING COUNT(*) > 1) some`,
    [id],
  )
  stage.expect('each missed event is acknowledged', missing === 0, `${missing} are not`)
  stage.expect('none is queued twice', twice === 0, `${twice} queued twice`)
}

/** Why the first missed event has not arrived, as `why` tells it. */
const why = async (stage: Stage, client: Client, { id }: Away): Promise<string> => {
  const [first] = await stage.sql.rows<{ event_id: string }>(
    `SELECT event_id FROM deliveries WHERE webhook_id = ? AND event_type <> 'ping' ORDER BY created_at LIMIT 1`,
    [id],
  )
  const { data } = await untilAnswered(() => client(WHY, { webhookId: id, eventId: first!.event_id }))
  const { verdict, reasons } = data.explainDelivery
  return `${verdict}: ${reasons.map(({ code }: { code: string }) => code).join(', ')}`
}

/** Where a process that heals dies or freezes: at a statement before it takes effect. */
const MOMENTS: Record<string, RegExp> = {
  'before the answer to the ping is recorded': /UPDATE webhook_recoveries SET answered_at/i,
  'after the answer to the ping is recorded': /SELECT id, epoch, ended_epoch, transport, sweeping FROM webhooks/i,
  'in the middle of queueing a page': /INSERT INTO delivery_queue[^;]*recovered/i,
  'between the last page and the end mark': /SET recovered_at/i,
}

const killed: Case = {
  name: 'healing-killed',
  says: 'A process that heals a webhook is killed at any point: another of three goes on, and queues nothing twice',
  engines: SHARED,
  async run(stage) {
    for (const [moment, statement] of Object.entries(MOMENTS)) {
      const { first, given, hold } = await caughtAt(stage, statement)
      first.signal('SIGKILL')
      await first.ended
      hold.end()
      stage.say(`killed ${moment}`)
      await goesOn(stage, given)
    }
  },
}

const frozen: Case = {
  name: 'healing-frozen',
  says: 'A process that freezes while it heals a webhook, and wakes when another has gone on, queues nothing twice',
  engines: SHARED,
  async run(stage) {
    for (const [moment, statement] of Object.entries(MOMENTS)) {
      const { first, given, hold, by } = await caughtAt(stage, statement)
      first.signal('SIGSTOP')
      // The database ends the transaction of a connection that is gone; the process does not know it yet.
      by.cut()
      hold.end()
      stage.say(`frozen ${moment}`)
      const lease = await leaseOf(stage)
      await goesOn(stage, given, async () => {
        await until('another goes on', async () => (await leaseOf(stage)) !== lease)
        first.signal('SIGCONT')
      })
      first.signal('SIGKILL')
      await first.ended
    }
  },
}

const caughtAt = async (stage: Stage, statement: RegExp) => {
  await stage.sql.run('DELETE FROM webhook_recoveries')
  await stage.sql.run(`UPDATE webhooks SET status = 'disabled'`)
  const by: DatabaseProxy = await stage.proxy()
  const first: Server = await stage.server({ ...HEALING, by })
  const given = await away(stage, stage.client(first))
  given.returns()
  const hold = by.hold(statement)
  await passTime(stage)
  await hold.caught
  return { first, given, hold, by }
}

const leaseOf = async (stage: Stage): Promise<string | null> =>
  (await stage.sql.rows<{ lease: string | null }>('SELECT lease FROM webhook_recoveries'))[0]!.lease

/** Two others take over: both find that it is due, and one goes on. */
const goesOn = async (stage: Stage, given: Away, meanwhile: () => Promise<void> = async () => {}): Promise<void> => {
  await stopTime(stage)
  const others = await Promise.all([stage.server(HEALING), stage.server(HEALING)])
  const told = await why(stage, stage.client(others[0]!), given)
  // If the first event was in an earlier page, it has arrived already, or its answer was lost with the connection.
  stage.expect('why says that it heals itself', /^(waiting: .*heal(s|ed)|delivered: .*healed)/.test(told), told)
  await passTime(stage)
  await meanwhile()
  await expectHealed(stage, given)
  const after = await why(stage, stage.client(others[0]!), given)
  stage.expect('why says that it was healed', /^delivered: .*healed/.test(after), after)
  for (const other of others) {
    other.signal('SIGKILL')
    await other.ended
  }
}

const restarted: Case = {
  name: 'healing-restarted',
  says: 'A server that is killed again and again while it heals a webhook goes on each time, and queues nothing twice',
  engines: ALL,
  async run(stage) {
    let server = await stage.server(HEALING)
    const given = await away(stage, stage.client(server))
    given.returns()
    const queued = () => stage.sql.number('SELECT queued FROM webhook_recoveries')
    for (let kills = 0; kills < 6 && !(await isHealed(stage)); kills++) {
      const before = await queued()
      await passTime(stage)
      await until('it goes on', async () => (await queued()) > before || (await isHealed(stage)), PATIENCE_MS, 5)
      server.signal('SIGKILL')
      await server.ended
      stage.say(`killed after ${await queued()} of ${given.count} were queued`)
      server = await stage.server(HEALING)
    }
    await passTime(stage)
    await expectHealed(stage, given)
  },
}

/** New events, from before the healing until after it. */
const NEW_EVENTS = 60
/** A page is queued for so long at most, between the time of its deliveries and its commit. */
const COMMIT_MS = 2_000

/** Deliveries that came before an earlier event of their project, which was queued by then and had not ended. */
const overtakers = async (stage: Stage, webhookId: string, endpoint: Endpoint): Promise<string[]> => {
  const made = await stage.sql.rows<{ id: string; project_id: string; created_at: number }>(
    `SELECT d.id, e.project_id, d.created_at FROM deliveries d JOIN events e ON e.id = d.event_id
     WHERE d.webhook_id = ? AND d.status = 'delivered' AND e.project_id IS NOT NULL ORDER BY e.created_at, e.id`,
    [webhookId],
  )
  const arrivals = endpoint.byId()
  return [...Map.groupBy(made, row => row.project_id).values()].flatMap(line =>
    line.flatMap(({ id }, n) => {
      const cameAt = arrivals.get(id)![0]!.at
      const overtaken = line.slice(0, n).find(earlier => {
        const last = arrivals.get(earlier.id)!.at(-1)!
        return Number(earlier.created_at) + COMMIT_MS < cameAt && (last.answeredAt ?? last.at) > cameAt
      })
      return overtaken ? [`${id} came before ${overtaken.id}`] : []
    }),
  )
}

const ordered: Case = {
  name: 'healing-ordered',
  says:
    'A webhook that keeps the order of projects is healed while new events come and the process that queues is ' +
    'killed: no event overtakes an earlier one of its project that is queued',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const first = await stage.server({ ...HEALING, by })
    const others = await Promise.all([stage.server(HEALING), stage.server(HEALING)])
    const clients = others.map(server => stage.client(server))
    const given = await away(stage, clients[0]!, CREATE_ORDERED)
    await times(12, n => done(given.world.submit(clients[n % 2]!, n % 3)))
    await untilSettled(stage)
    // Nobody but the first looks at what is due.
    const hold = by.hold(MOMENTS['in the middle of queueing a page']!)
    for (const other of others) other.signal('SIGSTOP')
    given.returns()
    await passTime(stage)
    await hold.caught
    for (const other of others) other.signal('SIGCONT')
    const submitting = times(NEW_EVENTS, n => done(given.world.submit(clients[n % 2]!, n % 3)), 4)
    first.signal('SIGKILL')
    await first.ended
    hold.end()
    stage.say('killed in the middle of queueing a page, while new events come')
    await passTime(stage)
    await submitting
    await expectHealed(stage, given)
    const wrong = await overtakers(stage, given.id, given.endpoint)
    stage.expect(
      'no event overtakes an earlier one of its project that is queued',
      wrong.length === 0,
      wrong.length === 0 ? `${given.endpoint.arrivals.length} requests` : wrong.slice(0, 5).join('; '),
    )
  },
}

export const healingCases: Case[] = [killed, frozen, restarted, ordered]
