import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { connect, type Database, insertMany, rows } from '../../server/database/connect.ts'
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
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { rowsRead } from '../support/rows-read.ts'
import { addWebhooks } from '../support/webhooks.ts'

const NOW = Date.parse('2026-11-22T12:00:00Z')
const DELIVERIES = 12_000
/** What a question of 50 rows may read: some for each of them, and of a hundred webhooks. */
const FEW = 1_500
/** The address of as many webhooks again, which one of the tokens does not see. */
const OF_OTHERS = 'http://127.0.0.1:9/'

describeEachEngine('what support asks of many deliveries', engine => {
  let given: TestDatabase
  let database: Database
  let named: { webhook_id: string; organisation_id: string }
  let admin: AccessToken
  let limited: AccessToken

  const token = async (organisationIds?: string[]): Promise<AccessToken> => {
    const asked = { name: 'test', permissions: ['read' as const], organisationIds }
    const { id } = await createAccessToken(given.database.knex, createSealer([randomBytes(32)]), asked, NOW)
    return { ...asked, id, seesAllOrganisations: !organisationIds } as unknown as AccessToken
  }

  before(async () => {
    given = await migratedDatabase(engine)
    admin = await token()
    await seedMany(given.database, { organisations: 60, projects: 300, users: 3 }, NOW, () => {})
    const counts = { webhooks: 40, events: DELIVERIES / 5, deliveries: DELIVERIES }
    await seedHistory(given.database, counts, { accessTokenId: admin.id, days: 30, now: NOW }, () => {})
    const { knex } = given.database
    const [first] = await rows<typeof named>(knex, 'SELECT * FROM webhook_organisations ORDER BY webhook_id LIMIT 1')
    named = first!
    const others = await knex('organisations').whereNot('id', named.organisation_id).limit(2).pluck<string[]>('id')
    limited = await token([named.organisation_id, ...others])
    await addEventsOfNoneAlone([named.organisation_id, others[0]!])
    const unseen = await knex('organisations')
      .whereNotIn('id', [named.organisation_id, ...others])
      .first('id')
    const webhook = { accessTokenId: admin.id, organisationIds: [unseen.id], url: OF_OTHERS }
    await addWebhooks(knex, Array(FEW).fill(webhook))
    // A connection of its own, whose count is that of one question at a time.
    database = engine === 'sqlite' ? given.database : await connect(given.url, { poolSize: 1 })
    if (engine !== 'sqlite') {
      for (const table of ['webhooks', 'events', 'deliveries', 'attempts', 'delivery_queue', 'projects']) {
        await knex.raw('ANALYZE TABLE ??', [table])
      }
    }
  })
  after(async () => {
    if (database !== given?.database) await database?.close()
    await given?.drop()
  })

  /** An event of all organisations, one of several, and a ping, each with a delivery to a webhook that is seen. */
  const addEventsOfNoneAlone = async (organisationIds: string[]): Promise<void> => {
    const { knex } = given.database
    const ids = ['all', 'some', 'ping'].map((_, n) => `00000000-0000-7000-8000-00000000000${n}`)
    await insertMany(
      knex,
      'events',
      ids.map((id, n) => ({
        id,
        type: n === 2 ? 'ping' : 'token_expired',
        all_organisations: n === 0 ? 1 : 0,
        payload: '{}',
        created_at: NOW - n,
      })),
    )
    await insertMany(
      knex,
      'event_organisations',
      organisationIds.map(organisation_id => ({ event_id: ids[1], organisation_id })),
    )
    await insertMany(
      knex,
      'deliveries',
      ids.map((event_id, n) => ({
        id: event_id.replace('8000', '9000'),
        event_id,
        webhook_id: named.webhook_id,
        event_type: 'ping',
        status: 'delivered',
        created_at: NOW - n,
        finished_at: NOW,
      })),
    )
  }

  /** The answer, and what was read for it; `whole`: as the rule for all of it at once answers. */
  const ask = async (asking: AccessToken, resource: Entity, query: MangoQuery, whole = false) => {
    const related = visibleTo(asking)
    const parts = whole ? undefined : () => partsOf(database.knex, asking, resource)
    const before = await rowsRead(database)
    const found = await find(database.knex, resource, query, related(resource), { related, parts, now: NOW })
    return { ids: found.rows.map(row => row.id), read: (await rowsRead(database)) - before }
  }

  const NEWEST = { sort: [{ createdAt: 'desc' }], limit: 50 }
  const questions: Record<string, () => [Entity, MangoQuery]> = {
    'the newest deliveries': () => [deliveries, NEWEST],
    'the newest of a status': () => [deliveries, { ...NEWEST, selector: { status: 'rejected' } }],
    'what is pending': () => [deliveries, { ...NEWEST, selector: { status: 'pending' } }],
    'the newest of a webhook': () => [deliveries, { ...NEWEST, selector: { webhookId: named.webhook_id } }],
    'a second page': () => [deliveries, { ...NEWEST, skip: 7, limit: 5 }],
    'the first webhooks': () => [webhooks, { limit: 50 }],
    'the newest events': () => [events, { sort: [{ time: 'desc' }], limit: 50 }],
    'the deliveries of an hour': () => [
      deliveries,
      { ...NEWEST, selector: { createdAt: { $beginsWith: '2026-11-20T09' } } },
    ],
    'what most payloads have': () => [
      deliveries,
      { ...NEWEST, selector: { 'event.payload.projectReport.quarter': '2026-3' } },
    ],
  }

  for (const name of Object.keys(questions)) {
    it(`reads little for an admin, and for a token of three organisations, that asks for ${name}`, async () => {
      const [resource, query] = questions[name]!()
      for (const asking of [admin, limited]) {
        const { ids, read } = await ask(asking, resource, query)
        assert.deepEqual(ids, (await ask(asking, resource, query, true)).ids)
        // Of so few, engines look through all payloads.
        if (!name.includes('payload')) assert.ok(read < FEW, `${read} rows were read`)
      }
      assert.ok((await ask(admin, resource, query)).ids.length > 0)
    })
  }

  it('shows a limited token the events of several organisations, of all and the pings among its newest', async () => {
    const { ids } = await ask(limited, events, { sort: [{ time: 'desc' }], limit: 3 })
    assert.deepEqual(
      ids,
      [0, 1, 2].map(n => `00000000-0000-7000-8000-00000000000${n}`),
    )
  })

  it('answers a token of a hundred organisations, however long its selector', async () => {
    const ids = Array.from({ length: 10_000 }, (): string => randomUUID())
    const owners = ids.slice(0, 99).map(id => ({ id, name: id, created_at: NOW, updated_at: NOW }))
    await insertMany(given.database.knex, 'organisations', owners)
    const wide = await token([...owners.map(({ id }) => id), named.organisation_id])
    const [event] = await rows<{ id: string }>(
      database.knex,
      'SELECT id FROM events WHERE organisation_id = ? ORDER BY id LIMIT 1',
      [named.organisation_id],
    )
    const some = [...ids.slice(1), event!.id]
    const either = [...ids.slice(0, 6).map(id => ({ id })), { id: event!.id }, { 'project.name': 'none' }]
    for (const selector of [{ id: { $in: some } }, { $or: either }]) {
      assert.deepEqual((await ask(wide, events, { selector, limit: 10 })).ids, [event!.id])
      const related = visibleTo(wide)
      const parts = () => partsOf(database.knex, wide, events)
      const asked = { selector, by: ['type'] }
      const [counted] = await count(database.knex, events, asked, related(events), { related, parts, now: NOW })
      assert.equal(counted?.count, 1)
    }
  })

  it('looks up what either a relation or a field of its own leads to, each row once', async () => {
    const [project] = await rows<{ name: string; organisation: string; organisation_id: string }>(
      database.knex,
      `SELECT p.name, o.name AS organisation, p.organisation_id
       FROM projects p JOIN organisations o ON o.id = p.organisation_id ORDER BY p.id LIMIT 1`,
    )
    const selector = { $or: [{ 'organisation.name': project!.organisation }, { name: project!.name }] }
    const { ids, read } = await ask(admin, projects, { selector })
    const { organisation_id } = project!
    const expected = await database.knex('projects').where({ organisation_id }).orderBy('id').pluck('id')
    assert.deepEqual(ids, expected)
    assert.ok(read < 100, `${read} rows were read`)
  })

  it('counts what a limited token sees as the rule for all of it says, and reads no more', async () => {
    const related = visibleTo(limited)
    for (const [resource, by] of [[events, 'type'] as const, [deliveries, 'status'] as const]) {
      const asked = { selector: {}, by: [by] }
      const whole = await count(database.knex, resource, asked, related(resource), { related, now: NOW })
      const before = await rowsRead(database)
      const parts = () => partsOf(database.knex, limited, resource)
      const counted = await count(database.knex, resource, asked, related(resource), { related, parts, now: NOW })
      const read = (await rowsRead(database)) - before
      assert.deepEqual(counted, whole)
      assert.ok(read < 2 * FEW, `${read} rows were read`)
    }
  })

  it('tells the health of webhooks and their last delivery from what is of the last day', async () => {
    const ofFew = { selector: { url: { $ne: OF_OTHERS } } }
    for (const asking of [admin, limited]) {
      const related = visibleTo(asking)
      const seen = await find(database.knex, webhooks, ofFew, related(webhooks), { related, now: NOW })
      const source = sourceOf(database.knex, { related, now: NOW })
      const before = await rowsRead(database)
      const health = await valuesOf(source, webhooks.fields.health, seen.rows)
      const last = await valuesOf(source, webhooks.fields.lastDeliveryAt, seen.rows)
      const read = (await rowsRead(database)) - before
      assert.ok(read < 2 * FEW, `${read} rows were read`)
      const row = seen.rows.find(({ id }) => id === named.webhook_id)!
      assert.equal(last(row), '2026-11-22T12:00:00.000+00:00')
      assert.equal((health(row) as { delivered: number }).delivered >= 3, true)
    }
  })
})
