import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { insertMany, rows } from '../../server/database/connect.ts'
import { quarterBefore } from '../../server/domain/quarters.ts'
import { seedMany } from '../../server/seed.ts'
import { seedHistory } from '../../server/seed-history.ts'
import { engines } from '../support/databases.ts'
import { median, quantile, show, table } from './figures.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// What time's work does to deliveries: 100 a second alone, and beside each step that has more to do than it can in that
// time, in the same process; and how fast the step is beside them. What is to be done is written while no server runs.
//
//   npm run bench -- schedule [--engine NAME] [--only purge] [--rate 100] [--seconds 30]
//     [--deliveries 200000] [--tokens 100000] [--projects 1000000]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: engines.at(-1)! },
    /** Part of a step's name. */
    only: { type: 'string', default: '' },
    rate: { type: 'string', default: '100' },
    /** Of a window that is measured. */
    seconds: { type: 'string', default: '30' },
    deliveries: { type: 'string', default: '200000' },
    tokens: { type: 'string', default: '100000' },
    projects: { type: 'string', default: '1000000' },
  },
})

const DAY_MS = 24 * 3600 * 1000
const RETENTION_DAYS = 30
const WARM_UP_MS = unlessSmallest(5_000, 300)
const DELIVERIES_AN_EVENT = 5
/** Of the p99 beside a step to that of deliveries alone. */
const GOAL = 2

type Work = {
  name: string
  /** What is counted, and how many of them there are to be done. */
  unit: string
  total: number
  seed(world: World): Promise<void>
  /** How many of them are done. */
  done(world: World): Promise<number>
}

const countOf = async ({ given }: World, sql: string, bindings: (string | number)[] = []): Promise<number> => {
  const [found] = await rows<{ n: number }>(given.database.knex, sql, bindings)
  return Number(found!.n)
}

const purge: Work = {
  name: 'purge',
  unit: 'deliveries',
  total: Number(options.deliveries),
  async seed({ given: { database, url }, admin }) {
    const [token] = await rows<{ id: string }>(database.knex, 'SELECT id FROM access_tokens WHERE api_key = ?', [
      admin.apiKey,
    ])
    const deliveries = Number(options.deliveries)
    const counts = { webhooks: 10, events: deliveries / DELIVERIES_AN_EVENT, deliveries }
    const history = { accessTokenId: token!.id, days: 1, now: Date.now() - (RETENTION_DAYS + 1) * DAY_MS }
    await seedHistory(database, counts, history, () => {})
    await database.knex('webhooks').where('url', 'like', '%.invalid/%').update({ status: 'disabled' })
    // What a retry of the last day is owed stays, and is none of this.
    await database.knex('delivery_queue').delete()
    await database.knex('deliveries').where({ status: 'pending' }).update({ status: 'cancelled' })
    if (url.startsWith('sqlite')) await database.knex.raw('ANALYZE')
  },
  done: async world =>
    purge.total -
    (await countOf(world, 'SELECT COUNT(*) AS n FROM deliveries WHERE created_at < ?', [Date.now() - 2 * DAY_MS])),
}

const expire: Work = {
  name: 'expiry',
  unit: 'tokens',
  total: Number(options.tokens),
  async seed({ given: { database } }) {
    const now = Date.now()
    const organisation_id = randomUUID()
    await database.knex('organisations').insert({ id: organisation_id, name: 'Expired', created_at: 1, updated_at: 1 })
    const ids = Array.from({ length: Number(options.tokens) }, () => randomUUID())
    for (let from = 0; from < ids.length; from += 1_000) {
      const part = ids.slice(from, from + 1_000)
      const times = { expires_at: now - 1_000, created_at: 1, updated_at: 1 }
      await insertMany(
        database.knex,
        'access_tokens',
        part.map(id => ({ id, name: 'expired', api_key: id, secret_sealed: '', sees_all_organisations: 0, ...times })),
      )
      await insertMany(
        database.knex,
        'access_token_organisations',
        part.map(access_token_id => ({ access_token_id, organisation_id })),
      )
    }
  },
  done: world => countOf(world, 'SELECT COUNT(*) AS n FROM access_tokens WHERE expiry_event_at IS NOT NULL'),
}

const open: Work = {
  name: 'opening',
  unit: 'reports',
  total: Number(options.projects),
  async seed({ given: { database } }) {
    await seedMany(database, { organisations: 10, projects: Number(options.projects), users: 0 }, Date.now(), () => {})
    // The quarter was completed before there were these.
    await database.knex('report_quarters').delete()
  },
  done: world =>
    countOf(world, 'SELECT COUNT(*) AS n FROM project_reports WHERE quarter = ?', [quarterBefore(Date.now())]),
}

type Finding = { p50: number; p99: number; lost: number; rate: number; left: boolean; cpu: number | undefined }

const measure = async (world: World, work?: Work): Promise<Finding> => {
  await world.settled()
  await world.server().end('SIGTERM')
  if (work) await work.seed(world)
  await world.restart()
  const warming = world.publish({ rate: Number(options.rate) })
  await wait(WARM_UP_MS)
  await warming()
  const pid = databasePidOf(world.given.url)
  const [before, since, spent] = [(await work?.done(world)) ?? 0, performance.now(), pid && cpuMs(pid)]
  const publishing = world.publish({ rate: Number(options.rate) })
  await wait(Number(options.seconds) * 1_000)
  const after = (await work?.done(world)) ?? 0
  const seconds = (performance.now() - since) / 1_000
  const cpu = pid && (cpuMs(pid) - spent!) / seconds / 10
  const { begunToReceived, missing, unanswered } = await publishing()
  return {
    p50: median(begunToReceived),
    p99: quantile(begunToReceived, 0.99),
    lost: missing + unanswered,
    rate: (after - before) / seconds,
    left: work !== undefined && after < work.total,
    cpu,
  }
}

const world = await startWorld(options.engine, {
  env: { TIDINGS_ROLES: 'api,delivery,scheduler', TIDINGS_RETENTION_DAYS: String(RETENTION_DAYS) },
})
try {
  const found: { name: string; unit: string; finding: Finding }[] = []
  const add = async (name: string, work?: Work) => {
    const finding = await measure(world, work)
    found.push({ name, unit: work?.unit ?? '', finding })
    console.log(`${name}: p50 ${show(finding.p50)} ms, p99 ${show(finding.p99)} ms, ${show(finding.rate)} a second`)
  }
  // The first window of a machine that has done nothing else is a slow one, and nobody's.
  await measure(world)
  // Before the steps: the last of them has more to do for minutes.
  for (let n = 0; n < 2; n++) await add('alone')
  for (const work of [purge, expire, open]) {
    if (work.name.includes(options.only)) await add(`beside ${work.name}`, work)
  }
  const alone = median(found.filter(({ name }) => name === 'alone').map(({ finding }) => finding.p99))
  console.log(`\n${options.engine}, ${options.rate} deliveries a second (goal: p99 within ${GOAL} × alone)`)
  console.log(
    table([
      ['', 'p50 ms', 'p99 ms', '× alone', 'lost', 'database CPU %', 'work a second', ''],
      ...found.map(({ name, unit, finding: { p50, p99, lost, rate, left, cpu } }) => [
        name,
        show(p50),
        show(p99),
        show(p99 / alone),
        String(lost),
        show(cpu),
        unit ? show(rate) : '',
        unit && `${unit}${left ? '' : ', all done before the end'}`,
      ]),
    ]),
  )
} finally {
  await world.stop()
}
