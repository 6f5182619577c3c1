import { readFileSync } from 'node:fs'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { rows, run } from '../../server/database/connect.ts'
import { PROJECTS } from '../chaos/endpoints.ts'
import { startLoad } from '../chaos/load.ts'
import { createDatabase, createWorld, type World } from '../chaos/world.ts'
import { startServerProcess } from '../delivery/server-process.ts'
import { startReceivers } from './receivers.ts'

// Measures the memory of one server process under load, with a million deliveries that wait and half of the endpoints
// answering a byte at a time.
//
//   npm run bench -- memory [--url mysql://root@127.0.0.1:3306] [--minutes 10] [--waiting 1000000]

const { values: options } = parseArgs({
  options: {
    url: { type: 'string', default: process.env.TIDINGS_TEST_DATABASE_URLS?.split(',')[0] ?? '' },
    minutes: { type: 'string', default: '10' },
    waiting: { type: 'string', default: '1000000' },
  },
})
const WAITING = Number(options.waiting)
const MEASURED_MS = Number(options.minutes) * 60_000
const ENDPOINTS = 100
const EVENTS_A_SECOND = 40
const DAY_MS = 24 * 3600 * 1000
const SAMPLE_EVERY_MS = Math.min(10_000, MEASURED_MS)

/** Deliveries of one event, due tomorrow: each statement makes as many as there are. */
const addWaiting = async ({ database, webhookIds }: World): Promise<void> => {
  const due = Date.now() + DAY_MS
  const id = 'CAST(UUID() AS char(36) CHARACTER SET ascii)'
  for (const webhookId of webhookIds) {
    await run(
      database.knex,
      `INSERT INTO delivery_queue (delivery_id, event_id, webhook_id, due_at) VALUES (${id}, 'none', ?, ?)`,
      [webhookId, due],
    )
  }
  for (let count = webhookIds.length; count < WAITING; count *= 2) {
    await run(
      database.knex,
      `INSERT INTO delivery_queue (delivery_id, event_id, webhook_id, due_at)
       SELECT ${id}, event_id, webhook_id, due_at + 1 FROM delivery_queue LIMIT ${WAITING - count}`,
    )
  }
  await run(
    database.knex,
    `INSERT INTO deliveries (id, event_id, webhook_id, event_type, status, next_attempt_at, created_at)
     SELECT delivery_id, event_id, webhook_id, 'ping', 'pending', due_at, ? FROM delivery_queue`,
    [Date.now()],
  )
}

const residentMb = (pid: number): number =>
  Math.round(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1024)

if (!options.url) throw new Error('It needs a database server: --url mysql://root@127.0.0.1:3306')
const receivers = await startReceivers(ENDPOINTS)
const databaseUrl = await createDatabase(options.url)
const world = await createWorld(
  databaseUrl,
  receivers.urls.map((url, index) => ({
    url: index % 2 === 0 ? url : `${url}trickling`,
    projects: [Math.floor(index / 2) % PROJECTS],
  })),
)
await addWaiting(world)
const [{ n }] = (await rows<{ n: number }>(world.database.knex, 'SELECT COUNT(*) AS n FROM delivery_queue')) as [
  { n: number },
]
const server = await startServerProcess(databaseUrl, {
  TIDINGS_ROLES: 'api,delivery,scheduler',
  TIDINGS_RATE_LIMIT: '0',
})
try {
  console.log(`${n} deliveries wait; ${residentMb(server.pid)} MB at the start`)
  const load = startLoad({
    world,
    rate: EVENTS_A_SECOND,
    seed: 1,
    targets: () => [{ url: server.url, avoidUntil: 0 }],
  })
  const since = Date.now()
  while (Date.now() - since < MEASURED_MS) {
    await wait(SAMPLE_EVERY_MS)
    const arrived = (await receivers.arrivals()).length
    console.log(
      `${Math.round((Date.now() - since) / 1000)} s: ${residentMb(server.pid)} MB, ` +
        `${load.result.submitted.size} submitted, ${arrived} answered at once`,
    )
  }
  await load.stop(5_000)
  console.log(server.log())
} finally {
  await server.end('SIGKILL')
  receivers.stop()
  await world.database.knex.raw('DROP DATABASE ??', [new URL(databaseUrl).pathname.slice(1)])
  await world.database.close()
}
