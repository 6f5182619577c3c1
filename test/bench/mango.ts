import { randomUUID } from 'node:crypto'
import { parseArgs } from 'node:util'
import { v7 as uuid } from 'uuid'
import { type Database, rows } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { deliveries, events, organisations, projects } from '../../server/domain/resources.ts'
import { count, find } from '../../server/mango/find.ts'
import type { MangoQuery } from '../../server/mango/query.ts'
import type { Resource } from '../../server/mango/resource.ts'
import { seedMany } from '../../server/seed.ts'
import { engines, freshDatabase } from '../support/databases.ts'
import { addWebhooks } from '../support/webhooks.ts'

// Compares selectors over many rows with handwritten SQL, as ratios of the medians of alternating runs, and walks all
// rows with `after` while rows are inserted and deleted.
//
//   TIDINGS_TEST_DATABASE_URLS=mysql://… node test/bench/mango.ts [--organisations 1000000] [--projects 100000]
//     [--deliveries 1000000] [--only counts]

const { values: options } = parseArgs({
  options: {
    organisations: { type: 'string', default: '1000000' },
    projects: { type: 'string', default: '100000' },
    deliveries: { type: 'string', default: '1000000' },
    engine: { type: 'string', default: engines.at(-1)! },
    // What the names of those that are to be compared begin with.
    only: { type: 'string', default: '' },
  },
})
const counts = {
  organisations: Number(options.organisations),
  projects: Number(options.projects),
  users: 0,
}
const deliveryCount = Number(options.deliveries)

const WEBHOOKS = 100
const STATUSES = ['delivered', 'delivered', 'delivered', 'delivered', 'delivered', 'rejected', 'dropped', 'cancelled']
const START = Date.parse('2026-01-01T00:00:00Z')

const main = async (): Promise<void> => {
  const fresh = await freshDatabase(options.engine)
  try {
    const { database } = fresh
    await migrate(database)
    await timed('seeding', () => seed(database))
    if (database.dialect.engine !== 'sqlite') {
      for (const table of ['organisations', 'projects', 'events', 'deliveries']) {
        await database.knex.raw('ANALYZE TABLE ??', [table])
      }
    } else await database.knex.raw('ANALYZE')
    await compareAll(database)
    if (!options.only) await walk(database)
  } finally {
    await fresh.drop()
  }
}

const timed = async (what: string, work: () => Promise<void>): Promise<void> => {
  const started = performance.now()
  await work()
  console.log(`${what}: ${((performance.now() - started) / 1000).toFixed(1)} s`)
}

const webhookIds = Array.from({ length: WEBHOOKS }, () => uuid())

const seed = async (database: Database): Promise<void> => {
  await seedMany(database, counts, START, () => {})
  const { knex } = database
  const times = { created_at: START, updated_at: START }
  const token = {
    id: uuid(),
    name: 'bench',
    api_key: 'tk_bench',
    secret_sealed: '',
    sees_all_organisations: 1,
    ...times,
  }
  await knex('access_tokens').insert(token)
  await addWebhooks(
    knex,
    webhookIds.map((id, n) => ({ id, accessTokenId: token.id, url: `https://example.com/${n}`, createdAt: START })),
  )
  const found: { id: string; organisation_id: string }[] = await knex('projects')
    .select('id', 'organisation_id')
    .limit(50_000)
  // An event to each of ten webhooks.
  const size = database.dialect.engine === 'sqlite' ? 400 : 2_000
  for (let from = 0; from < deliveryCount; from += size) {
    const part = Array.from({ length: Math.min(size, deliveryCount - from) }, (_, n) => from + n)
    const written = part.filter(n => n % 10 === 0)
    const eventIds = new Map(written.map(n => [n, uuid()]))
    if (written.length > 0) {
      await knex('events').insert(
        written.map(n => {
          const project = found[(n / 10) % found.length]!
          const type = n % 50 === 0 ? 'token_expired' : 'project_report_quarterly_submitted'
          const payload = {
            projectReport: { id: randomUUID(), projectId: project.id, quarter: '2026-1', submitterName: `Name ${n}` },
          }
          return {
            id: eventIds.get(n),
            type,
            organisation_id: project.organisation_id,
            project_id: project.id,
            all_organisations: 0,
            payload: JSON.stringify(payload),
            created_at: START + n,
          }
        }),
      )
    }
    await knex('deliveries').insert(
      part.map(n => ({
        id: uuid(),
        event_id: eventIds.get(n - (n % 10)),
        webhook_id: webhookIds[(n * 7) % WEBHOOKS],
        event_type: n % 50 < 10 ? 'token_expired' : 'project_report_quarterly_submitted',
        status: STATUSES[n % STATUSES.length],
        attempt_count: 1 + (n % 3),
        next_attempt_at: null,
        created_at: START + n,
        finished_at: START + n + 50,
      })),
    )
  }
}

type Compared = {
  name: string
  resource: Resource
  query: MangoQuery
  /** Counted by these fields. */
  by?: string[]
  sql: string
  bindings?: (string | number)[]
}

const compareAll = async (database: Database): Promise<void> => {
  const { knex, dialect } = database
  const { engine } = dialect
  const one = async (table: string, offset: number) => (await knex(table).orderBy('id').offset(offset).limit(1))[0]
  const organisation = await one('organisations', Math.floor(counts.organisations / 2))
  const delivery = await one('deliveries', Math.floor(deliveryCount / 2))
  const event = await one('events', Math.floor(deliveryCount / 20))
  const binary = { mysql: 'utf8mb4_0900_bin', mariadb: 'utf8mb4_nopad_bin', sqlite: 'binary' }[engine]
  const regexp = (column: string) =>
    ({ mysql: `REGEXP_LIKE(${column}, ?, 'c')`, mariadb: `${column} COLLATE ${binary} REGEXP ?`, sqlite: '' })[engine]
  const columns = '*'

  const compared: Compared[] = [
    {
      name: 'by id',
      resource: deliveries,
      query: { selector: { id: delivery.id } },
      sql: `SELECT ${columns} FROM deliveries WHERE id = ?`,
      bindings: [delivery.id],
    },
    {
      name: 'by name',
      resource: organisations,
      query: { selector: { name: organisation.name } },
      sql: 'SELECT * FROM organisations WHERE name = ? ORDER BY id',
      bindings: [organisation.name],
    },
    {
      name: 'name begins with',
      resource: organisations,
      query: { selector: { name: { $beginsWith: organisation.name } } },
      sql: 'SELECT * FROM organisations WHERE name >= ? AND name < ? ORDER BY id LIMIT 10001',
      bindings: [organisation.name, `${organisation.name}\uffff`],
    },
    {
      name: 'name $regex with a beginning',
      resource: organisations,
      query: { selector: { name: { $regex: `^${organisation.name}[0-9]*$` } } },
      sql: 'SELECT * FROM organisations WHERE name >= ? AND name < ? ORDER BY id LIMIT 10001',
      bindings: [organisation.name, `${organisation.name}\uffff`],
    },
    {
      name: 'sorted by name, first 50',
      resource: organisations,
      query: { sort: ['name'], limit: 50 },
      sql: 'SELECT * FROM organisations ORDER BY name, id LIMIT 50',
    },
    {
      name: 'sorted by name desc, first 50',
      resource: organisations,
      query: { sort: [{ name: 'desc' }], limit: 50 },
      sql: 'SELECT * FROM organisations ORDER BY name DESC, id DESC LIMIT 50',
    },
    {
      name: 'page after, by name',
      resource: organisations,
      query: { sort: ['name'], limit: 50, after: organisation.id },
      sql: 'SELECT * FROM organisations WHERE (name = ? AND id > ?) OR name > ? ORDER BY name, id LIMIT 50',
      bindings: [organisation.name, organisation.id, organisation.name],
    },
    {
      name: 'projects of an organisation',
      resource: projects,
      query: { selector: { organisationId: event.organisation_id } },
      sql: 'SELECT * FROM projects WHERE organisation_id = ? ORDER BY id',
      bindings: [event.organisation_id],
    },
    {
      name: 'projects by the name of their organisation',
      resource: projects,
      query: { selector: { 'organisation.name': organisation.name } },
      sql: 'SELECT p.* FROM projects p JOIN organisations o ON o.id = p.organisation_id WHERE o.name = ? ORDER BY p.id',
      bindings: [organisation.name],
    },
    {
      name: 'deliveries of an event',
      resource: deliveries,
      query: { selector: { eventId: event.id } },
      sql: 'SELECT * FROM deliveries WHERE event_id = ? ORDER BY id',
      bindings: [event.id],
    },
    {
      name: 'last 50 of a webhook',
      resource: deliveries,
      query: { selector: { webhookId: webhookIds[3] }, sort: [{ id: 'desc' }], limit: 50 },
      sql: 'SELECT * FROM deliveries WHERE webhook_id = ? ORDER BY id DESC LIMIT 50',
      bindings: [webhookIds[3]!],
    },
    {
      name: 'last 50 rejected of a webhook',
      resource: deliveries,
      query: { selector: { webhookId: webhookIds[5], status: 'rejected' }, sort: [{ finishedAt: 'desc' }], limit: 50 },
      sql:
        "SELECT * FROM deliveries WHERE webhook_id = ? AND status = 'rejected' ORDER BY finished_at DESC, id DESC " +
        'LIMIT 50',
      bindings: [webhookIds[5]!],
    },
    {
      name: 'last 50 dropped of all',
      resource: deliveries,
      query: { selector: { status: 'dropped' }, sort: [{ createdAt: 'desc' }], limit: 50 },
      sql: "SELECT * FROM deliveries WHERE status = 'dropped' ORDER BY created_at DESC, id DESC LIMIT 50",
    },
    {
      name: 'deliveries between two times',
      resource: deliveries,
      query: {
        selector: {
          createdAt: {
            $gte: new Date(START + deliveryCount / 2).toISOString(),
            $lt: new Date(START + deliveryCount / 2 + 500).toISOString(),
          },
        },
      },
      sql: 'SELECT * FROM deliveries WHERE created_at >= ? AND created_at < ? ORDER BY id',
      bindings: [START + deliveryCount / 2, START + deliveryCount / 2 + 500],
    },
    {
      name: 'deliveries of a project, over their event',
      resource: deliveries,
      query: { selector: { 'event.projectId': event.project_id } },
      sql: 'SELECT d.* FROM deliveries d JOIN events e ON e.id = d.event_id WHERE e.project_id = ? ORDER BY d.id',
      bindings: [event.project_id],
    },
    {
      name: 'events of an organisation, newest first',
      resource: events,
      query: { selector: { organisationId: event.organisation_id }, sort: [{ time: 'desc' }], limit: 50 },
      sql: 'SELECT * FROM events WHERE organisation_id = ? ORDER BY created_at DESC, id DESC LIMIT 50',
      bindings: [event.organisation_id],
    },
    {
      name: 'last 50 events of a type',
      resource: events,
      query: { selector: { type: 'token_expired' }, sort: [{ time: 'desc' }], limit: 50 },
      sql: "SELECT * FROM events WHERE type = 'token_expired' ORDER BY created_at DESC, id DESC LIMIT 50",
    },
    {
      name: 'deliveries by the url of their webhook, last 50',
      resource: deliveries,
      query: { selector: { 'webhook.url': 'https://example.com/7' }, sort: [{ id: 'desc' }], limit: 50 },
      sql:
        "SELECT d.* FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id WHERE w.url = 'https://example.com/7' " +
        'ORDER BY d.id DESC LIMIT 50',
    },
    ...(engine === 'sqlite'
      ? []
      : [
          {
            name: 'name $regex, engine’s own beside it',
            resource: organisations,
            query: { selector: { name: { $regex: 'Trust [0-9]*77$' } } },
            sql: `SELECT * FROM organisations WHERE ${regexp('name')} ORDER BY id LIMIT 10001`,
            bindings: ['Trust [0-9]*77$'],
          },
          ...['[0-9]{4}7$', '^[A-C][a-z]+[^a-z]+[A-F]'].map(pattern => ({
            name: `name $regex without a literal, ${pattern}`,
            resource: organisations,
            query: { selector: { name: { $regex: pattern } }, limit: 5_000 },
            sql: `SELECT * FROM organisations WHERE ${regexp('name')} ORDER BY id LIMIT 5000`,
            bindings: [pattern],
          })),
          ...['[0-9]{4}77$', '^[A-C][a-z]+[^a-z]+[A-F].*777$', '(77|71)1$'].map(pattern => ({
            name: `few by $regex, ${pattern}`,
            resource: organisations,
            query: { selector: { name: { $regex: pattern } } },
            sql: `SELECT * FROM organisations WHERE ${regexp('name')} ORDER BY id LIMIT 10001`,
            bindings: [pattern],
          })),
          {
            name: 'name $regex (?i)',
            resource: organisations,
            query: { selector: { name: { $regex: '(?i)acme [a-z]+ [0-9]*71$' } } },
            sql:
              engine === 'mysql'
                ? "SELECT * FROM organisations WHERE REGEXP_LIKE(name, ?, 'i') ORDER BY id LIMIT 10001"
                : 'SELECT * FROM organisations WHERE name REGEXP ? ORDER BY id LIMIT 10001',
            bindings: [engine === 'mysql' ? 'acme [a-z]+ [0-9]*71$' : '(?i)acme [a-z]+ [0-9]*71$'],
          },
        ]),
    {
      name: 'counts of all deliveries by status',
      resource: deliveries,
      query: {},
      by: ['status'],
      sql: 'SELECT status, COUNT(*) FROM deliveries GROUP BY status',
    },
    {
      name: 'counts of all deliveries by webhook and status',
      resource: deliveries,
      query: {},
      by: ['webhookId', 'status'],
      sql: 'SELECT webhook_id, status, COUNT(*) FROM deliveries GROUP BY webhook_id, status',
    },
    {
      name: 'counts of the dropped since a time, by webhook',
      resource: deliveries,
      query: {
        selector: { status: 'dropped', createdAt: { $gte: new Date(START + deliveryCount / 2).toISOString() } },
      },
      by: ['webhookId'],
      sql:
        "SELECT webhook_id, COUNT(*) FROM deliveries WHERE status = 'dropped' AND created_at >= ? " +
        'GROUP BY webhook_id',
      bindings: [START + deliveryCount / 2],
    },
    {
      name: 'counts of deliveries by type, of one webhook',
      resource: deliveries,
      query: { selector: { webhookId: webhookIds[5] } },
      by: ['eventType'],
      sql: 'SELECT event_type, COUNT(*) FROM deliveries WHERE webhook_id = ? GROUP BY event_type',
      bindings: [webhookIds[5]!],
    },
    {
      name: 'payload quarter and name',
      resource: events,
      query: {
        selector: { 'payload.projectReport.submitterName': `Name ${Math.floor(deliveryCount / 200) * 10 + 20}` },
      },
      sql: 'SELECT * FROM events WHERE INSTR(payload, ?) > 0 ORDER BY id',
      bindings: [`"Name ${Math.floor(deliveryCount / 200) * 10 + 20}"`],
    },
  ]

  console.log(
    `\n${database.dialect.engine}, ${counts.organisations} organisations, ${counts.projects} projects, ` +
      `${deliveryCount} deliveries`,
  )
  console.log('ratio   mango ms  by hand ms  rows  examined  indexes')
  for (const { name, resource, query, by, sql, bindings = [] } of compared) {
    if (!name.startsWith(options.only)) continue
    let found = 0
    const mango = async () => {
      const { selector } = query
      found = by
        ? (await count(knex, resource, { selector, by }, () => {})).length
        : (await find(knex, resource, query, () => {})).rows.length
    }
    let byHandRows = 0
    const byHand = async () => {
      byHandRows = (await rows(knex, sql, bindings)).length
    }
    const [mangoMs, byHandMs] = (await medians(mango, byHand)) as [number, number]
    const explain = by ? undefined : (await find(knex, resource, query, () => {}, { explain: true })).explain
    const figures = [
      (mangoMs / byHandMs).toFixed(2).padStart(5),
      mangoMs.toFixed(2).padStart(10),
      byHandMs.toFixed(2).padStart(11),
      String(found).padStart(6),
      String(explain?.rowsExamined ?? '').padStart(8),
    ]
    const differs = found === byHandRows ? '' : ` (by hand ${byHandRows} rows)`
    const indexes = explain ? `: ${explain.indexes?.join(', ') || 'no index'}` : ''
    console.log(`${figures.join('')}  ${name}${indexes}${differs}`)
  }
}

/** The medians of runs that take turns, in milliseconds: of many where they are short. */
const medians = async (...works: (() => Promise<void>)[]): Promise<number[]> => {
  const times = works.map(() => [] as number[])
  // Warms up first, because a running server is warm.
  for (const work of works) {
    const from = performance.now()
    for (let n = 0; n === 0 || (n < 2_000 && performance.now() - from < 500); n++) await work()
  }
  const started = performance.now()
  while (times[0]!.length < 5 || (performance.now() - started < 2_000 && times[0]!.length < 300)) {
    for (const [n, work] of works.entries()) {
      const from = performance.now()
      await work()
      times[n]!.push(performance.now() - from)
    }
  }
  return times.map(list => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)]!)
}

/**
 * Walks all organisations in pages, by three orders at once,
 * while others come and go: each that stays is seen exactly once.
 */
const walk = async (database: Database): Promise<void> => {
  const { knex } = database
  const staying = Number((await knex('organisations').count({ n: '*' }))[0]!.n)
  let walking = true
  let changes = 0
  const disturb = async () => {
    const times = { created_at: START, updated_at: START }
    while (walking) {
      const id = uuid()
      const early = `00000000-0000-7000-8000-${randomUUID().slice(-12)}`
      await knex('organisations').insert([
        { id, name: `Acme Passing ${changes}`, ...times },
        { id: early, name: `Zz Passing ${changes}`, ...times },
      ])
      await knex('organisations').whereIn('id', [id, early]).delete()
      changes += 4
      await new Promise(resolve => setTimeout(resolve, 1))
    }
  }
  const disturbing = disturb()
  for (const sort of [undefined, ['name'], [{ name: 'desc' }]]) {
    const seen = new Set<string>()
    let passing = 0
    let pages = 0
    let slowestMs = 0
    let after: string | undefined
    const started = performance.now()
    while (true) {
      const page = performance.now()
      const query = { limit: 5_000, ...(sort && { sort }), ...(after && { after }) }
      const found = (await find(knex, organisations, query, () => {})).rows as { id: string; name: string }[]
      pages += 1
      slowestMs = Math.max(slowestMs, performance.now() - page)
      for (const { id, name } of found) {
        if (name.includes('Passing')) passing += 1
        else if (seen.has(id)) throw new Error(`${id} was seen twice`)
        else seen.add(id)
      }
      if (found.length < 5_000) break
      // A row that is gone by then cannot be continued from, unless the order is that of the ids.
      after = found.findLast(({ name }) => !name.includes('Passing'))!.id
    }
    const seconds = (performance.now() - started) / 1000
    if (seen.size !== staying) throw new Error(`${seen.size} of ${staying} were seen`)
    console.log(
      `walk by ${JSON.stringify(sort ?? 'id')}: ${staying} rows once each in ${pages} pages, ` +
        `${seconds.toFixed(1)} s, slowest page ${slowestMs.toFixed(0)} ms; ${passing} passing rows seen`,
    )
  }
  walking = false
  await disturbing
  console.log(`${changes} rows came and went meanwhile`)
}

await main()
