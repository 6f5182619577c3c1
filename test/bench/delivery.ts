import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { sendOnce } from '../../server/delivery/attempt.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender } from '../../server/delivery/send.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { openKeyring } from '../../server/keys/signing-keys.ts'
import { RETRY_SCHEDULE_MS } from '../../shared/retry-schedule.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { masterKey } from '../delivery/server-process.ts'
import { engines } from '../support/databases.ts'
import { byProcesses, claimTimer, untilEmpty } from './backlog.ts'
import { startReceivers } from './receivers.ts'
import { unlessSmallest } from './smallest.ts'

// Measures the delivery engine, as ratios within one run.
//
//   npm run bench -- delivery [--engine NAME] [--rounds 3] [--deliveries 10000] [--seconds 10]
//   npm run bench -- claims [--rows 1000000]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    rounds: { type: 'string', default: '3' },
    deliveries: { type: 'string', default: '10000' },
    seconds: { type: 'string', default: '10' },
    /** Claims are measured too. */
    claims: { type: 'boolean', default: false },
    /** Not yet due, beside a claim. */
    rows: { type: 'string', default: '1000000' },
  },
})

const ENDPOINTS = 100
const ROUNDS = Number(options.rounds)
const DELIVERIES = Number(options.deliveries)
const EVENTS_A_SECOND = 100
const SECONDS = Number(options.seconds)

const quantile = (sorted: number[], part: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]!
const round = (value: number): number => Math.round(value * 100) / 100

/** Deliveries a second by the same client with the same signatures, without a database. */
const withoutDatabase = async (fixture: Fixture, urls: string[]): Promise<number> => {
  const clock = { now: () => Date.now() }
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const keyring = await openKeyring(fixture.database, sealer, clock)
  const sender = createSender({
    guard: createNetworkGuard({ allow: ['127.0.0.0/8'] }),
    maxConnectionsPerOrigin: 1024,
  })
  const tools = {
    ...{ clock, keyring, sealer, sender },
    issuerUrl: 'https://tidings.example',
    retryScheduleMs: RETRY_SCHEDULE_MS,
  }
  const payload = JSON.stringify({ projectReport: { id: randomUUID(), projectId: randomUUID(), quarter: '2026-3' } })
  let left = DELIVERIES
  const startedAt = performance.now()
  await Promise.all(
    Array.from({ length: 256 }, async () => {
      while (left > 0) {
        left -= 1
        const url = urls[left % urls.length]!
        const eventType = 'project_report_quarterly_overdue'
        const ids = { deliveryId: randomUUID(), eventId: randomUUID(), webhookId: randomUUID() }
        await sendOnce(
          { ...ids, url, requestSealed: null, eventType, eventTime: clock.now(), payload, traceparent: null },
          tools,
        )
      }
    }),
  )
  const took = performance.now() - startedAt
  await sender.close()
  keyring.stop()
  return (DELIVERIES / took) * 1000
}

/** Deliveries a second of a backlog, claimed, signed, logged and settled. */
const withDatabase = async (fixture: Fixture): Promise<number> => {
  await fixture.emit(DELIVERIES / ENDPOINTS)
  const startedAt = performance.now()
  const loop = await fixture.startLoop()
  await untilEmpty(fixture)
  const took = performance.now() - startedAt
  await loop.stop()
  return (DELIVERIES / took) * 1000
}

const throughput = async (engine: string): Promise<void> => {
  const receivers = await startReceivers(ENDPOINTS)
  const fixture = await startFixture(engine, { now: () => Date.now() }, { masterKey })
  try {
    const ratios: number[] = []
    for (let n = 0; n < ROUNDS; n++) {
      const bare = await withoutDatabase(fixture, receivers.urls)
      for (const url of receivers.urls) await fixture.webhook(url)
      const durable = await withDatabase(fixture)
      await fixture.reset()
      ratios.push(durable / bare)
      console.log(
        `${engine}: ${Math.round(durable)} deliveries/s durable, ${Math.round(bare)} without a database: ` +
          `ratio ${round(durable / bare)}`,
      )
    }
    const median = quantile(
      ratios.toSorted((a, b) => a - b),
      0.5,
    )
    console.log(`${engine}: median ratio ${round(median)} (wanted: 0.7 or more)`)
    for (const count of engine === 'sqlite' ? [1] : [1, 2]) {
      const bare = await withoutDatabase(fixture, receivers.urls)
      for (const url of receivers.urls) await fixture.webhook(url)
      const durable = await byProcesses(fixture, count, DELIVERIES / ENDPOINTS)
      await fixture.reset()
      console.log(
        `${engine}: ${Math.round(durable)} deliveries/s by ${count} server process(es) of their own, ` +
          `${Math.round(bare)} without a database: ratio ${round(durable / bare)}`,
      )
    }
  } finally {
    await fixture.stop()
    receivers.stop()
  }
}

/** Milliseconds from the commit of a change to the request at each of 10 receivers, at a steady rate. */
const latency = async (engine: string, hanging: number): Promise<{ p50: number; p99: number }> => {
  const receivers = await startReceivers(10 + hanging)
  const fixture = await startFixture(engine, { now: () => Date.now() })
  try {
    const loop = await fixture.startLoop()
    for (const url of receivers.urls.slice(hanging)) await fixture.webhook(url)
    for (const url of receivers.urls.slice(0, hanging)) await fixture.webhook(`${url}hanging`)
    const measure = async (seconds: number): Promise<number[]> => {
      await receivers.arrivals()
      const committed = new Map<string, number>()
      for (let n = 0; n < seconds * EVENTS_A_SECOND; n++) {
        const next = wait(1000 / EVENTS_A_SECOND)
        void fixture.emit().then(([id]) => {
          committed.set(id!, Date.now())
          loop.wake()
        })
        await next
      }
      await wait(500)
      return (await receivers.arrivals()).map(([id, at]) => at - committed.get(id)!).toSorted((a, b) => a - b)
    }
    await measure(unlessSmallest(3, 0.3))
    const sorted = await measure(SECONDS)
    return { p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) }
  } finally {
    receivers.stop()
    await fixture.stop()
  }
}

const latencies = async (engine: string): Promise<void> => {
  const alone = await latency(engine, 0)
  const besides = await latency(engine, 1)
  console.log(
    `${engine}: commit to receiver, ${EVENTS_A_SECOND} events/s, 10 endpoints each: p50 ${alone.p50} ms, ` +
      `p99 ${alone.p99} ms (wanted: 20 or less); with one more that hangs: p50 ${besides.p50} ms, ` +
      `p99 ${besides.p99} ms, ratio of p99 ${round(besides.p99 / alone.p99)} (wanted: 2 or less)`,
  )
}

/** Milliseconds of a claim of 200 due deliveries, beside few and many later ones. */
const claims = async (engine: string): Promise<void> => {
  const fixture = await startFixture(engine, { now: () => Date.now() })
  try {
    const claimMs = await claimTimer(fixture)
    const few = await claimMs(1000)
    const many = await claimMs(Number(options.rows))
    console.log(
      `${engine}: claim of 200 due: ${round(few)} ms with 1,000 not yet due, ${round(many)} ms with ${options.rows}: ` +
        `ratio ${round(many / few)} (wanted: 1.5 or less)`,
    )
  } finally {
    await fixture.stop()
  }
}

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  await throughput(engine)
  await latencies(engine)
  if (options.claims) await claims(engine)
}
