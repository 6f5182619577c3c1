import { randomBytes } from 'node:crypto'
import { parseArgs } from 'node:util'
import { connect, type Database, marks, rows } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { deliveries, type Entity, events, projects, webhooks } from '../../server/domain/resources.ts'
import { partsOf, visibleTo } from '../../server/domain/visibility.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { valuesOf } from '../../server/mango/documents.ts'
import { count, find } from '../../server/mango/find.ts'
import type { MangoQuery } from '../../server/mango/query.ts'
import { sourceOf } from '../../server/mango/source.ts'
import { seedMany } from '../../server/seed.ts'
import { seedHistory } from '../../server/seed-history.ts'
import { engines, freshDatabase } from '../support/databases.ts'
import { rowsRead } from '../support/rows-read.ts'
import { median, show } from './figures.ts'

// Measures support's questions on many deliveries, as an admin and as a token that sees few organisations, beside
// handwritten SQL: milliseconds (the median of five) and the rows that the engine says it read.
//
//   npm run bench -- reads [--events 100000] [--deliveries 500000] [--engine NAME]
//   node test/bench/reads.ts --url mysql://…   on a database that `tidings server seed` has filled; it is left so

const { values: options } = parseArgs({
  options: {
    events: { type: 'string', default: '100000' },
    deliveries: { type: 'string', default: '500000' },
    engine: { type: 'string', default: engines.at(-1)! },
    url: { type: 'string' },
    only: { type: 'string', default: '' },
  },
})

const main = async (): Promise<void> => {
  if (options.url) {
    const database = await connect(options.url, { poolSize: 1 })
    return compare(database).finally(() => database.close())
  }
  const fresh = await freshDatabase(options.engine)
  try {
    await migrate(fresh.database)
    await seed(fresh.database)
    const database = await connect(fresh.url, { poolSize: 1 })
    await compare(database).finally(() => database.close())
  } finally {
    await fresh.drop()
  }
}

const seed = async (database: Database): Promise<void> => {
  const now = Date.now()
  const counts = { events: Number(options.events), deliveries: Number(options.deliveries) }
  const owner = await makeToken(database, undefined)
  await seedMany(database, { organisations: 1_000, projects: 5_000, users: 50 }, now, () => {})
  await seedHistory(database, { webhooks: 100, ...counts }, { accessTokenId: owner.id, days: 30, now }, () => {})
  const tables = ['events', 'deliveries', 'attempts', 'delivery_queue']
  if (database.dialect.isEmbedded) return void (await database.knex.raw('ANALYZE'))
  for (const name of tables) await database.knex.raw('ANALYZE TABLE ??', [name])
}

const makeToken = async (database: Database, organisationIds: string[] | undefined): Promise<AccessToken> => {
  const now = Date.now()
  const given = { name: 'bench', permissions: ['read' as const], organisationIds }
  const { id } = await createAccessToken(database.knex, createSealer([randomBytes(32)]), given, now)
  return { ...given, id, seesAllOrganisations: organisationIds === undefined } as unknown as AccessToken
}

type Asked = () => Promise<unknown[]>
type Question = { name: string; asked: Asked; byHand?: { sql: string; bindings?: (string | number)[] } }

const compare = async (database: Database): Promise<void> => {
  const { knex } = database
  const [named] = await rows<{ id: string; organisation_id: string }>(
    knex,
    'SELECT webhook_id AS id, organisation_id FROM webhook_organisations ORDER BY organisation_id LIMIT 1',
  )
  const others = await rows<{ id: string }>(knex, 'SELECT id FROM organisations ORDER BY id DESC LIMIT 2')
  const one = await makeToken(database, [named!.organisation_id])
  const three = await makeToken(database, [named!.organisation_id, ...others.map(({ id }) => id)])
  const admin = { ...one, seesAllOrganisations: true }
  try {
    const questions = await questionsOf(database, { admin, one, three, named: named! })
    const headings = ['', 'found', 'ms', 'rows read', 'by hand: ms', 'rows read', 'ratio']
    console.log(headings.map((heading, n) => (n === 0 ? heading.padEnd(42) : heading.padStart(12))).join(''))
    for (const question of questions) {
      if (!question.name.includes(options.only)) continue
      const { found, own, hand } = await measure(database, question)
      const figures = [String(found), show(own.ms), String(own.read), show(hand?.ms), hand ? String(hand.read) : '—']
      const ratio = show(hand && own.ms / hand.ms)
      console.log(question.name.padEnd(42) + [...figures, ratio].map(text => text.padStart(12)).join(''))
    }
  } finally {
    for (const name of ['access_token_organisations', 'access_token_permissions']) {
      await knex(name).whereIn('access_token_id', [one.id, three.id]).delete()
    }
    await knex('access_tokens').whereIn('id', [one.id, three.id]).delete()
  }
}

const measure = async (database: Database, { asked, byHand }: Question) => {
  const own = await timed(database, asked)
  const hand = byHand && (await timed(database, () => rows(database.knex, byHand.sql, byHand.bindings ?? [])))
  return { found: own.found, own, hand }
}

const RUNS = 5

const timed = async (database: Database, work: Asked) => {
  const before = await rowsRead(database)
  const found = await work()
  const read = (await rowsRead(database)) - before
  const times: number[] = []
  while (times.length < RUNS && times.reduce((sum, ms) => sum + ms, 0) < 5_000) {
    const startedAt = performance.now()
    await work()
    times.push(performance.now() - startedAt)
  }
  return { found: found.length, read, ms: median(times) }
}

type Callers = {
  admin: AccessToken
  one: AccessToken
  three: AccessToken
  named: { id: string; organisation_id: string }
}

const NEWEST = { sort: [{ createdAt: 'desc' }], limit: 50 }

const questionsOf = async (database: Database, { admin, one, three, named }: Callers): Promise<Question[]> => {
  const { knex } = database
  const { useIndex, isEmbedded } = database.dialect
  /** Reads the first table first. */
  const joinInOrder = isEmbedded ? 'CROSS JOIN' : 'STRAIGHT_JOIN'
  const now = Date.now()
  const ask =
    (token: AccessToken, resource: Entity, query: MangoQuery): Asked =>
    async () => {
      const related = visibleTo(token)
      const parts = () => partsOf(knex, token, resource)
      return (await find(knex, resource, query, related(resource), { related, parts, now })).rows
    }
  const counted =
    (token: AccessToken, resource: Entity, by: string[], selector: object = {}): Asked =>
    () => {
      const related = visibleTo(token)
      const parts = () => partsOf(knex, token, resource)
      return count(knex, resource, { selector, by }, related(resource), { related, parts, now })
    }
  const derived =
    (token: AccessToken, field: 'health' | 'lastDeliveryAt'): Asked =>
    async () => {
      const related = visibleTo(token)
      const seen = await find(knex, webhooks, {}, related(webhooks), { related, now })
      const read = await valuesOf(sourceOf(knex, { related, now }), webhooks.fields[field], seen.rows)
      return seen.rows.map(read)
    }
  const webhookIds = await knex('webhooks').pluck<string[]>('id')
  const [latest] = await rows<{ at: number }>(knex, 'SELECT MAX(created_at) AS at FROM deliveries')
  const hour = new Date(Number(latest!.at)).toISOString().slice(0, 13)
  const dayBefore = new Date(Number(latest!.at) - 24 * 3_600_000).toISOString()
  const hourMs = Date.parse(`${hour}:00:00Z`)
  const [project] = await rows<{ id: string; name: string; organisation_id: string; organisation: string }>(
    knex,
    `SELECT p.id, p.name, p.organisation_id, o.name AS organisation
     FROM projects p JOIN organisations o ON o.id = p.organisation_id LIMIT 1`,
  )
  const [report] = await rows<{ payload: string }>(knex, 'SELECT payload FROM events ORDER BY id DESC LIMIT 1')
  const reportId: string = JSON.parse(report!.payload).projectReport.id
  const threeIds = await knex('access_token_organisations')
    .where('access_token_id', three.id)
    .pluck<string[]>('organisation_id')
  const newest = (where: string, bindings: (string | number)[] = []) => ({
    sql: `SELECT * FROM deliveries ${where} ORDER BY created_at DESC, id DESC LIMIT 50`,
    bindings,
  })
  const ofOne = `SELECT d.* FROM deliveries d WHERE d.webhook_id = ? AND EXISTS (SELECT 1 FROM events e
    WHERE e.id = d.event_id AND e.organisation_id = ?) %s ORDER BY created_at DESC, id DESC LIMIT 50`
  const byOne = (more = '') => ({ sql: ofOne.replace('%s', more), bindings: [named.id, named.organisation_id] })
  return [
    { name: 'deliveries, newest 50: admin', asked: ask(admin, deliveries, NEWEST), byHand: newest('') },
    { name: 'deliveries, newest 50: one', asked: ask(one, deliveries, NEWEST), byHand: byOne() },
    {
      name: 'pending: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { status: 'pending' } }),
      byHand: {
        sql: `SELECT d.* FROM delivery_queue q JOIN deliveries d ON d.id = q.delivery_id
          ORDER BY d.created_at DESC, d.id DESC LIMIT 50`,
      },
    },
    {
      name: 'pending: one',
      asked: ask(one, deliveries, { ...NEWEST, selector: { status: 'pending' } }),
      byHand: byOne("AND status = 'pending'"),
    },
    {
      name: 'rejected, newest 50: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { status: 'rejected' } }),
      byHand: newest("WHERE status = 'rejected'"),
    },
    {
      name: 'rejected, newest 50: one',
      asked: ask(one, deliveries, { ...NEWEST, selector: { status: 'rejected' } }),
      byHand: byOne("AND status = 'rejected'"),
    },
    {
      name: 'rejected or dropped: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { status: { $in: ['rejected', 'dropped'] } } }),
      byHand: {
        // SQLite has no parentheses around the parts of a union.
        sql: `SELECT * FROM (${['rejected', 'dropped']
          .map(
            (status, n) => `SELECT * FROM (SELECT * FROM deliveries WHERE status = '${status}'
              ORDER BY created_at DESC, id DESC LIMIT 50) u${n}`,
          )
          .join(' UNION ALL ')}) u ORDER BY created_at DESC, id DESC LIMIT 50`,
      },
    },
    {
      name: 'of a webhook, newest 50: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { webhookId: named.id } }),
      byHand: newest('WHERE webhook_id = ?', [named.id]),
    },
    {
      name: 'of a webhook, rejected: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { webhookId: named.id, status: 'rejected' } }),
      byHand: newest("WHERE webhook_id = ? AND status = 'rejected'", [named.id]),
    },
    {
      name: 'health: admin',
      asked: derived(admin, 'health'),
      byHand: {
        sql: `SELECT webhook_id, status, COUNT(*) FROM deliveries ${useIndex('deliveries_by_webhook')}
          WHERE webhook_id IN (${marks(webhookIds)}) AND finished_at >= ?
            AND status IN ('delivered', 'rejected', 'dropped', 'cancelled') GROUP BY webhook_id, status
          UNION ALL SELECT webhook_id, status, COUNT(*) FROM deliveries ${useIndex('deliveries_by_webhook')}
          WHERE webhook_id IN (${marks(webhookIds)}) AND status = 'pending' AND finished_at IS NULL
          GROUP BY webhook_id, status`,
        bindings: [...webhookIds, now - 24 * 3600 * 1000, ...webhookIds],
      },
    },
    { name: 'health: one', asked: derived(one, 'health') },
    {
      name: 'lastDeliveryAt: admin',
      asked: derived(admin, 'lastDeliveryAt'),
      byHand: { sql: 'SELECT webhook_id, status, MAX(finished_at) FROM deliveries GROUP BY webhook_id, status' },
    },
    { name: 'lastDeliveryAt: one', asked: derived(one, 'lastDeliveryAt') },
    {
      name: 'events, newest 50: one',
      asked: ask(one, events, { sort: [{ time: 'desc' }], limit: 50 }),
      byHand: {
        sql: 'SELECT * FROM events WHERE organisation_id = ? ORDER BY created_at DESC, id DESC LIMIT 50',
        bindings: [named.organisation_id],
      },
    },
    {
      name: 'events, newest 50: three',
      asked: ask(three, events, { sort: [{ time: 'desc' }], limit: 50 }),
      byHand: {
        sql: 'SELECT * FROM events WHERE organisation_id IN (?, ?, ?) ORDER BY created_at DESC, id DESC LIMIT 50',
        bindings: threeIds,
      },
    },
    {
      name: 'events by type: three',
      asked: counted(three, events, ['type']),
      byHand: {
        sql: 'SELECT type, COUNT(*) FROM events WHERE organisation_id IN (?, ?, ?) GROUP BY type',
        bindings: threeIds,
      },
    },
    {
      name: 'deliveries by status: one',
      asked: counted(one, deliveries, ['status']),
      byHand: {
        sql: 'SELECT status, COUNT(*) FROM deliveries WHERE webhook_id = ? GROUP BY status',
        bindings: [named.id],
      },
    },
    {
      name: 'deliveries by hour and status, a day: admin',
      asked: counted(admin, deliveries, ['createdAt:hour', 'status'], { createdAt: { $gte: dayBefore } }),
      byHand: {
        sql: `SELECT ${database.dialect.quotient('created_at', 3_600_000)} AS span, status, COUNT(*) FROM deliveries
          WHERE created_at >= ? GROUP BY span, status`,
        bindings: [Date.parse(dayBefore)],
      },
    },
    {
      name: 'deliveries by hour and status, all: admin',
      asked: counted(admin, deliveries, ['createdAt:hour', 'status']),
      byHand: {
        sql: `SELECT ${database.dialect.quotient('created_at', 3_600_000)} AS span, status, COUNT(*) FROM deliveries
          GROUP BY span, status`,
      },
    },
    {
      name: 'createdAt $beginsWith an hour: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { createdAt: { $beginsWith: hour } } }),
      byHand: newest('WHERE created_at >= ? AND created_at < ?', [hourMs, hourMs + 3_600_000]),
    },
    {
      name: 'attempts $elemMatch 422: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { attempts: { $elemMatch: { statusCode: 422 } } } }),
      byHand: newest(
        `WHERE CASE WHEN EXISTS (SELECT 1 FROM attempts a WHERE a.delivery_id = deliveries.id AND a.status_code = 422)
          THEN 1 END = 1`,
      ),
    },
    {
      name: '$or of a relation and an own field: admin',
      asked: ask(admin, projects, {
        limit: 50,
        selector: { $or: [{ 'organisation.name': project!.organisation }, { name: project!.name }] },
      }),
      byHand: {
        sql: `SELECT * FROM projects WHERE organisation_id = ? UNION SELECT * FROM projects WHERE name = ?
          ORDER BY id LIMIT 50`,
        bindings: [project!.organisation_id, project!.name],
      },
    },
    {
      name: 'event.payload, common: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { 'event.payload.projectReport.quarter': '2026-3' } }),
      byHand: {
        sql: `SELECT d.* FROM deliveries d ${joinInOrder} events e ON e.id = d.event_id
          WHERE INSTR(e.payload, '"2026-3"') > 0 ORDER BY d.created_at DESC, d.id DESC LIMIT 50`,
      },
    },
    {
      name: 'event.payload, common: one',
      asked: ask(one, deliveries, { ...NEWEST, selector: { 'event.payload.projectReport.quarter': '2026-3' } }),
    },
    {
      name: 'event.payload, one of all: one',
      asked: ask(one, deliveries, { ...NEWEST, selector: { 'event.payload.projectReport.id': reportId } }),
    },
    {
      name: 'event.payload, one of all: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { 'event.payload.projectReport.id': reportId } }),
      byHand: {
        sql: `SELECT d.* FROM events e ${joinInOrder} deliveries d ON d.event_id = e.id
          WHERE INSTR(e.payload, ?) > 0 ORDER BY d.created_at DESC, d.id DESC LIMIT 50`,
        bindings: [`"${reportId}"`],
      },
    },
    {
      name: 'event type $regex: admin',
      asked: ask(admin, deliveries, { ...NEWEST, selector: { eventType: { $regex: '(?i)_(sub|app)[a-z]+' } } }),
      byHand: newest("WHERE event_type LIKE '%submitted' OR event_type LIKE '%approved'"),
    },
    {
      name: 'project name ^text$: admin',
      asked: ask(admin, projects, { limit: 50, selector: { name: { $regex: `^${project!.name}$` } } }),
      byHand: { sql: 'SELECT * FROM projects WHERE name = ? ORDER BY id LIMIT 50', bindings: [project!.name] },
    },
  ]
}

await main()
