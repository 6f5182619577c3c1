import { randomBytes } from 'node:crypto'
import { parseArgs } from 'node:util'
import { statistics } from '../../cli/commands/stats.ts'
import type { Session } from '../../cli/connection/session.ts'
import { whyEvent } from '../../cli/why/event.ts'
import { whyOrganisation } from '../../cli/why/organisation.ts'
import { whyWebhook } from '../../cli/why/webhook.ts'
import { connect, type Database, rows } from '../../server/database/connect.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { countHour, hoursToCount } from '../../server/domain/delivery-hours.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { seedMany } from '../../server/seed.ts'
import { seedHistory } from '../../server/seed-history.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { startTestServer } from '../support/server.ts'
import { median, quantile, show, table } from './figures.ts'

// Measures `why`, `stats` and counts by spans of time on many deliveries: what the commands ask of a server, from the
// signed request to the read answer, beside the SQL that one would write by hand for the same counts.
//
//   npm run bench -- why [--deliveries 100000] [--engine NAME]
//   TIDINGS_MASTER_KEY=… node test/bench/why.ts --url mysql://…   on a database that `tidings server seed` has filled

const { values: options } = parseArgs({
  options: {
    deliveries: { type: 'string', default: '100000' },
    engine: { type: 'string', default: engines.at(-1)! },
    url: { type: 'string' },
    only: { type: 'string', default: '' },
    runs: { type: 'string', default: '31' },
    /** Seconds. A server at work has compiled the code of what it is asked; first answers take three times as long. */
    'warm-up': { type: 'string', default: '5' },
  },
})

/** A filled database has secrets that its own key sealed. */
const masterKey = process.env.TIDINGS_MASTER_KEY ?? randomBytes(32).toString('base64')

const RUNS = Number(options.runs)
const WARM_UP_MS = Number(options['warm-up']) * 1000
const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

const seed = async (database: Database): Promise<void> => {
  const now = Date.now()
  const deliveries = Number(options.deliveries)
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const { id } = await createAccessToken(database.knex, sealer, { name: 'bench', permissions: ['read'] }, now)
  await seedMany(database, { organisations: 1_000, projects: 5_000, users: 50 }, now, () => {})
  const counts = { webhooks: 100, events: Math.ceil(deliveries / 5), deliveries }
  await seedHistory(database, counts, { accessTokenId: id, days: 30, now }, () => {})
}

const analyse = async ({ dialect, knex }: Database): Promise<void> => {
  if (dialect.isEmbedded) return void (await knex.raw('ANALYZE'))
  for (const name of ['events', 'deliveries', 'attempts', 'delivery_hours']) await knex.raw('ANALYZE TABLE ??', [name])
}

type Question = { name: string; asked: () => Promise<unknown>; byHand?: { sql: string; bindings: (string | number)[] } }

/** Milliseconds of the two, in turns: the median and the slowest of the first, the median of the second. */
const inTurns = async ({ asked, byHand }: Question, database: Database) => {
  const own: number[] = []
  const hand: number[] = []
  const timed = async (into: number[], work: () => Promise<unknown>): Promise<void> => {
    const begunAt = performance.now()
    await work()
    into.push(performance.now() - begunAt)
  }
  const first: number[] = []
  await timed(first, asked)
  const warmAt = performance.now() + WARM_UP_MS
  while (performance.now() < warmAt) await asked()
  for (let run = 0; run < RUNS; run++) {
    await timed(own, asked)
    if (byHand) await timed(hand, () => rows(database.knex, byHand.sql, byHand.bindings))
  }
  return { first: first[0]!, own: median(own), slowest: quantile(own, 1), hand: byHand && median(hand) }
}

const questionsOf = async (
  session: Session,
  limitedTo: (organisationIds: string[]) => Promise<Session>,
  database: Database,
): Promise<Question[]> => {
  const { knex } = database
  const one = async (sql: string, bindings: string[] = []) =>
    (await rows<Record<string, string>>(knex, sql, bindings))[0]!
  const { at } = await one('SELECT MAX(created_at) AS at FROM deliveries')
  const toMs = Number(at) + 1
  const { id: webhookId } = await one('SELECT id FROM webhooks WHERE all_organisations_and_projects = 1 LIMIT 1')
  const sent = await one('SELECT event_id FROM deliveries WHERE webhook_id = ? ORDER BY created_at DESC LIMIT 1', [
    webhookId!,
  ])
  const unsent = await one(
    `SELECT e.id FROM events e LEFT JOIN deliveries d ON d.event_id = e.id AND d.webhook_id = ?
     WHERE d.id IS NULL ORDER BY e.created_at DESC LIMIT 1`,
    [webhookId!],
  )
  const { id: organisationId } = await one('SELECT organisation_id AS id FROM events ORDER BY created_at DESC LIMIT 1')
  const few = await rows<{ id: string }>(knex, 'SELECT id FROM organisations ORDER BY id LIMIT 3')
  const limited = await limitedTo([organisationId!, ...few.map(({ id }) => id)])
  const since = (ms: number) => ({ since: new Date(toMs - ms).toISOString(), until: new Date(toMs).toISOString() })
  const counts = async (ms: number, of: object[], by: string) =>
    session.graphql(
      'query ($s: MangoSelector, $by: [String!]) { counts(resource: deliveries, selector: $s, by: $by) { key count } }',
      {
        s: { $and: [...of, { createdAt: { $gte: since(ms).since } }, { createdAt: { $lt: since(ms).until } }] },
        by: [by, 'status'],
      },
    )
  const byHand = (ms: number, of: string, bindings: string[]) => ({
    sql: `SELECT ${database.dialect.quotient('created_at', HOUR_MS)} AS span, status, COUNT(*) FROM deliveries
      WHERE ${of} created_at >= ? AND created_at < ? GROUP BY span, status`,
    bindings: [...bindings, toMs - ms, toMs],
  })
  const stats =
    (ms: number, of: string | undefined, as = session) =>
    () =>
      statistics(as, { webhookId: of, fromMs: toMs - ms, toMs })
  const ofWebhook = 'webhook_id = ? AND'
  return [
    { name: 'why WEBHOOK', asked: () => whyWebhook(session, webhookId!, {}) },
    { name: 'why WEBHOOK, 24 h', asked: () => whyWebhook(session, webhookId!, since(DAY_MS)) },
    {
      name: 'why WEBHOOK EVENT, sent',
      asked: () => whyEvent(session, { webhookId: webhookId!, eventId: sent.event_id! }),
    },
    {
      name: 'why WEBHOOK EVENT, not sent',
      asked: () => whyEvent(session, { webhookId: webhookId!, eventId: unsent.id! }),
    },
    { name: 'why ORGANISATION, 24 h', asked: () => whyOrganisation(session, organisationId!, since(DAY_MS)) },
    { name: 'stats WEBHOOK, 24 h', asked: stats(DAY_MS, webhookId) },
    { name: 'stats WEBHOOK, 30 d', asked: stats(30 * DAY_MS, webhookId) },
    { name: 'stats, 24 h', asked: stats(DAY_MS, undefined) },
    { name: 'stats, 30 d', asked: stats(30 * DAY_MS, undefined) },
    { name: 'stats, 24 h, of four organisations', asked: stats(DAY_MS, undefined, limited) },
    { name: 'stats, 30 d, of four organisations', asked: stats(30 * DAY_MS, undefined, limited) },
    {
      name: 'counts by hour, WEBHOOK, 24 h',
      asked: () => counts(DAY_MS, [{ webhookId }], 'createdAt:hour'),
      byHand: byHand(DAY_MS, ofWebhook, [webhookId!]),
    },
    {
      name: 'counts by hour, WEBHOOK, 30 d',
      asked: () => counts(30 * DAY_MS, [{ webhookId }], 'createdAt:hour'),
      byHand: byHand(30 * DAY_MS, ofWebhook, [webhookId!]),
    },
    { name: 'counts by hour, 24 h', asked: () => counts(DAY_MS, [], 'createdAt:hour'), byHand: byHand(DAY_MS, '', []) },
    {
      name: 'counts by hour, 30 d',
      asked: () => counts(30 * DAY_MS, [], 'createdAt:hour'),
      byHand: byHand(30 * DAY_MS, '', []),
    },
  ]
}

/** As the scheduler has by the time of the newest delivery. */
const countHours = async (database: Database): Promise<void> => {
  const [newest] = await rows<{ at: number }>(database.knex, 'SELECT MAX(created_at) AS at FROM deliveries')
  for (const hourAt of await hoursToCount(database.knex, Number(newest!.at))) await countHour(database, hourAt)
}

const compare = async (url: string): Promise<void> => {
  const database = await connect(url, { poolSize: 1 })
  // Nothing is sent: the endpoints are made up.
  const env = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_MASTER_KEY: masterKey }
  const server = await startTestServer(options.engine, { url, env })
  try {
    await countHours(database)
    await analyse(database)
    const as = (token?: Credentials): Session => {
      const graphql = async (document: string, variables: object) => {
        const { data, errors } = await server.graphql(document, variables, token)
        if (errors) throw new Error(JSON.stringify(errors))
        return data
      }
      return { graphql } as Session
    }
    const limitedTo = async (organisationIds: string[]) =>
      as(await server.token({ permissions: ['read'], organisationIds }))
    const found: string[][] = [['', 'first', 'median ms', 'slowest', 'by hand', 'ratio']]
    for (const question of await questionsOf(as(), limitedTo, database)) {
      if (!question.name.includes(options.only)) continue
      const { first, own, slowest, hand } = await inTurns(question, database)
      found.push([question.name, show(first), show(own), show(slowest), show(hand), show(hand && own / hand)])
      console.error(found.at(-1)!.join('  '))
    }
    console.log(table(found))
  } finally {
    await server.stop()
    await database.close()
  }
}

if (options.url) await compare(options.url)
else {
  const fresh = await migratedDatabase(options.engine)
  try {
    await seed(fresh.database)
    await compare(fresh.url)
  } finally {
    await fresh.drop()
  }
}
