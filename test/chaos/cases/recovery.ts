import { setTimeout as wait } from 'node:timers/promises'
import { eventually } from '../../support/eventually.ts'
import { done } from '../stage/client.ts'
import { fillEvents } from '../stage/filling.ts'
import {
  CREATE_WEBHOOK,
  percentile,
  RECOVER,
  type Stage,
  times,
  UPSERT_WEBHOOK,
  until,
  untilAnswered,
  untilSettled,
  within,
} from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// A recovery covers everything and comes after new deliveries; following ids gives the order of events.

/** Events that should have a delivery to a webhook, and have none. */
const withoutDelivery = (stage: Stage, webhookId: string): Promise<number> =>
  stage.sql.number(
    `SELECT COUNT(*) FROM events e WHERE e.type <> 'ping'
       AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.webhook_id = ?)`,
    [webhookId],
  )

const slowCommit: Case = {
  name: 'recovery-slow-commit',
  says:
    'Recovery covers an event whose transaction takes 10 s and is committed after its webhook was enabled and ' +
    'recovered',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const slow = stage.client(await stage.server({ by, roles: 'api' }))
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
    const since = new Date(Date.now() - 60_000).toISOString()
    await world.submitMany(client, 2)
    const hold = by.hold(/^\s*COMMIT/i, { times: 2 })
    const slowly = [0, 1].map(() => world.submit(slow))
    await until('two commits are slow', () => hold.count() === 2)
    const released = wait(10_000).then(hold.end)
    // It waits for them as long as a request may, and must then be repeated.
    const enabled = await eventually(
      'an enabling that nothing stands in the way of',
      () => client(UPSERT_WEBHOOK, { id, status: 'active' }),
      ({ code }) => code !== 'UNAVAILABLE',
      { timeoutMs: 120_000, everyMs: 500 },
    )
    stage.say(`two commits are slow; enabled: ${enabled.code ?? 'done'}`)
    // A recovery that was refused because of a conflict is repeated.
    const recovered = await eventually(
      'a recovery that nothing stands in the way of',
      () => client(RECOVER, { webhookId: id, since }),
      ({ code }) => {
        if (code) stage.say(`recovery answered ${code}`)
        return code !== 'UNAVAILABLE' && code !== 'INTERNAL_SERVER_ERROR'
      },
      { timeoutMs: 120_000, everyMs: 500 },
    )
    stage.say(`recovered ${recovered.data?.recoverDeliveries?.queued ?? recovered.code}`)
    await released
    const answers = await Promise.all(slowly)
    await wait(3_000)
    await untilSettled(stage)
    const made = 2 + answers.filter(({ code }) => code === undefined).length
    const missing = await withoutDelivery(stage, id)
    stage.expect('every event has a delivery', missing === 0, `${missing} of ${made} have none`)
  },
}

const latency: Case = {
  name: 'recovery-latency',
  says:
    'With a database 20 to 60 ms away, every event that is submitted around an enabling and a recovery has a ' +
    'delivery',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const client = stage.client(await stage.server({ by }))
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const cycles = stage.size(40)
    let broken = 0
    let missing = 0
    for (let cycle = 0; cycle < cycles; cycle++) {
      by.delay(10 + (cycle % 5) * 5)
      const submitting = times(
        40,
        async n => {
          await wait(n * 20)
          return world.submit(client)
        },
        40,
      )
      await wait(100 + (cycle % 4) * 50)
      const since = new Date().toISOString()
      await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
      await done(client(UPSERT_WEBHOOK, { id, status: 'active' }))
      await done(client(RECOVER, { webhookId: id, since }))
      for (const { code } of await submitting) if (code) stage.say(`a submit answered ${code}`)
      const now = await withoutDelivery(stage, id)
      if (now > missing) broken += 1
      missing = now
    }
    by.delay(0)
    stage.expect(
      'every event has a delivery',
      missing === 0,
      `in ${broken} of ${cycles} cycles ${missing} events have none`,
    )
  },
}

const behind: Case = {
  name: 'recovery-behind',
  says: 'A recovery goes behind what is new: a new event is not late by what is recovered',
  engines: ALL,
  async run(stage) {
    const server = await stage.server({ env: { TIDINGS_CONCURRENCY: '32' } })
    const client = stage.client(server)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint(() => ({ status: 200, afterMs: 200 }))
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const since = new Date(Date.now() - 60_000).toISOString()
    await wait(100)
    const count = stage.size(600)
    await fillEvents(stage.sql, { ...world.projects[0]!, count })
    await done(client(RECOVER, { webhookId: id, since }))
    stage.say(`${count} are recovered for an endpoint that takes 200 ms, 8 at once`)
    const latencies = await times(
      20,
      async n => {
        await wait(n * 250)
        const submitted = await world.submit(client)
        const reportId = submitted.data.submitProjectReport.id
        const find = () => endpoint.arrivals.find(arrival => arrival.reportId === reportId)
        await until('it arrives', () => find() !== undefined, 120_000)
        return find()!.at - submitted.answeredAt
      },
      20,
    )
    await untilSettled(stage)
    const median = percentile(latencies, 50)
    stage.expect(
      'new events do not wait for what is recovered',
      median <= 1_500,
      `new events came after ${median} ms (median)`,
    )
  },
}

const twoAtOnce: Case = {
  name: 'two-recoveries',
  says: 'Two recoveries at once queue each event once',
  engines: ALL,
  async run(stage) {
    const first = await stage.server()
    const second = stage.engine === 'sqlite' ? first : await stage.server()
    const clients = [stage.client(first), stage.client(second)]
    const client = clients[0]!
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const since = new Date(Date.now() - 60_000).toISOString()
    await wait(100)
    await fillEvents(stage.sql, { ...world.projects[0]!, count: 200 })
    const recovered = await Promise.all([0, 1, 0, 1].map(n => done(clients[n]!(RECOVER, { webhookId: id, since }))))
    await untilSettled(stage)
    const twice = await stage.sql.number(
      'SELECT COUNT(*) FROM (SELECT event_id FROM deliveries ' +
        'WHERE webhook_id = ? GROUP BY event_id HAVING COUNT(*) > 1) twice',
      [id],
    )
    const missing = await withoutDelivery(stage, id)
    const queued = recovered.map(({ queued }) => Number(queued))
    stage.expect(
      'each event has one delivery',
      twice === 0 && missing === 0,
      `queued ${queued.join(' + ')}; ${twice} twice, ${missing} never`,
    )
  },
}

const METRIC = /clock/i
/** Less than a clock is ahead, which a watch must not wait for. */
const SHOWN_WITHIN_MS = 30_000
const WALK = `query ($after: UUID!) {
  deliveries(query: {after: $after, selector: {eventType: {_ne: "ping"}}}) { id } }`

/** A watch at a machine with the right time, while another machine's clock is ahead. */
const watched = async (stage: Stage, aheadMs: number): Promise<void> => {
  const right = await stage.server()
  const ahead = await stage.server({ clockAheadMs: aheadMs })
  const client = stage.client(right)
  const world = await stage.world(client)
  const endpoint = await stage.endpoint()
  await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  const startWatch = () => stage.cli(right, ['deliveries', 'watch', '--output', 'ndjson'])
  let watch = startWatch()
  await until('it watches', () => {
    // Where nothing answers it in time, it says so and ends.
    if (watch.hasEnded()) {
      stage.say(`the watch has ended: ${watch.stderr().trim()}`)
      watch = startWatch()
    }
    return /Watching/.test(watch.stderr())
  })
  await done(world.submit(stage.client(ahead)))
  await until('it arrives', () => endpoint.arrivals.length === 1)
  const first = endpoint.arrivals[0]!.id
  await until('the watch shows it', () => watch.stdout().includes(first), SHOWN_WITHIN_MS)
  await times(10, () => done(world.submit(client)), 1)
  await until('they arrive', () => endpoint.arrivals.length === 11)
  const own = endpoint.arrivals.slice(1).map(({ id }) => id)
  const shown = () => own.filter(id => watch.stdout().includes(id)).length
  await within(SHOWN_WITHIN_MS, () => shown() === 10)
  stage.expect('the watch shows what happens after it', shown() === 10, `${shown()} of 10 deliveries shown`)
  const walked = await untilAnswered(() => client(WALK, { after: first }))
  const found = (walked.data?.deliveries ?? []).length
  stage.expect('a walk with after finds what happened after it', found === 10, `${found} of 10 deliveries are after it`)
  const metrics = await (await fetch(`${ahead.url}/metrics`)).text()
  const isTold = METRIC.test(ahead.stderr())
  const isMeasured = metrics.split('\n').some(line => !line.startsWith('#') && METRIC.test(line))
  stage.expect(
    'a clock that is off is told in the log and in /metrics',
    isTold && isMeasured,
    `${isTold ? 'told' : 'not told'} in the log, ${isMeasured ? 'measured' : 'not measured'} in /metrics`,
  )
}

const watch45s: Case = {
  name: 'watch-clock-45s',
  says: 'A watch shows what happens while another machine’s clock is 45 s ahead',
  engines: SHARED,
  run: stage => watched(stage, 45_000),
}

const watchDay: Case = {
  name: 'watch-clock-day',
  says: 'A watch shows what happens after one event by a machine whose clock is a day ahead',
  engines: SHARED,
  run: stage => watched(stage, 24 * 3_600_000),
}

export const recoveryCases: Case[] = [slowCommit, latency, behind, twoAtOnce, watch45s, watchDay]
