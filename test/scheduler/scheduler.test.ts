import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, beforeEach, it } from 'node:test'
import { connect } from '../../server/database/connect.ts'
import { createAccessToken, type NewAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { createLog } from '../../server/log.ts'
import { runSchedule, startScheduler } from '../../server/scheduler/scheduler.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { addProject as addProjectMadeAt } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

const DAY_MS = 24 * 3600 * 1000
/** Few: of every hour of them the deliveries are counted. */
const RETENTION_DAYS = 2
const at = (iso: string) => Date.parse(iso)

const TABLES = [
  'delivery_queue',
  'attempts',
  'deliveries',
  'event_organisations',
  'events',
  'used_signatures',
  'webhooks',
  'access_token_permissions',
  'access_token_organisations',
  'access_tokens',
  'project_reports',
  'projects',
  'organisations',
  'report_quarters',
]

describeEachEngine('the scheduler', engine => {
  const clock = testClock(at('2026-10-01T00:00:00Z'))
  const sealer = createSealer([randomBytes(32)])
  let given: TestDatabase
  beforeEach(async () => {
    given ??= await migratedDatabase(engine)
    for (const table of TABLES) await given.database.knex(table).delete()
    clock.set(at('2026-10-01T00:00:00Z'))
  })
  after(() => given?.drop())

  const tools = (database = given.database) => ({
    database,
    clock,
    log: createLog('silent'),
    reportDueDays: 30,
    retentionDays: RETENTION_DAYS,
    onEvents: () => {},
  })
  const token = (change: Partial<NewAccessToken> = {}) =>
    given.database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'test', permissions: ['read'], ...change }, clock.now()),
    )
  const webhook = async () => {
    const { id: accessTokenId } = await token()
    return addWebhook(given.database.knex, { accessTokenId, createdAt: clock.now() })
  }
  /** One that was there before the quarter that has just ended did, unless told otherwise. */
  const addProject = (
    database: TestDatabase['database'],
    change: { organisation?: string; project?: string; createdAt?: number } = {},
  ) => addProjectMadeAt(database, { createdAt: clock.now() - DAY_MS, ...change })
  const events = (type: string) => given.database.knex('events').where({ type })
  const reports = () => given.database.knex('project_reports').orderBy('quarter')

  /** Two schedulers at once, on connections of their own where the engine has several. */
  const twoAtOnce = async () => {
    const other = engine === 'sqlite' ? given.database : await connect(given.url)
    try {
      await Promise.all([runSchedule(tools()), runSchedule(tools(other))])
    } finally {
      if (other !== given.database) await other.close()
    }
  }

  it('opens the report of the quarter just ended for every project, due 30 days after its end', async () => {
    const { projectId } = await addProject(given.database)
    await addProject(given.database, { organisation: 'Borealis', project: 'Meals' })
    await runSchedule(tools())
    const opened = await reports()
    assert.equal(opened.length, 2)
    const own = opened.find(report => report.project_id === projectId)
    assert.deepEqual([own.quarter, own.due_date, own.status], ['2026-3', '2026-10-30', 'open'])
    clock.set(at('2026-12-31T23:59:59Z'))
    await runSchedule(tools())
    assert.equal((await reports()).length, 2)
    clock.set(at('2027-01-01T00:00:00Z'))
    await runSchedule(tools())
    assert.deepEqual(
      (await reports()).map(report => report.quarter),
      ['2026-3', '2026-3', '2026-4', '2026-4'],
    )
  })

  it('opens each report once, however many there are and however many schedulers open them', async () => {
    const { organisationId } = await addProject(given.database)
    const times = { created_at: clock.now() - DAY_MS, updated_at: clock.now() }
    const more = Array.from({ length: 450 }, (_, n) => ({
      id: randomUUID(),
      organisation_id: organisationId,
      name: `Project ${n}`,
      ...times,
    }))
    await given.database.knex('projects').insert(more)
    await twoAtOnce()
    assert.equal((await reports()).length, 451)
  })

  it('opens no report for a project that was made after the quarter ended', async () => {
    const { projectId } = await addProject(given.database, { createdAt: clock.now() })
    await runSchedule(tools())
    assert.deepEqual(await reports(), [])
    clock.set(at('2027-01-01T00:00:00Z'))
    await runSchedule(tools())
    const opened = await reports()
    assert.deepEqual(
      opened.map(report => [report.project_id, report.quarter]),
      [[projectId, '2026-4']],
    )
  })

  it('opens the report of a project whose creation was under way when its quarter ended', async () => {
    await runSchedule(tools())
    clock.advance(5_000)
    await addProject(given.database, { createdAt: at('2026-09-30T23:59:59.999Z') })
    await runSchedule(tools())
    assert.deepEqual(
      (await reports()).map(report => report.quarter),
      ['2026-3'],
    )
  })

  it('makes up for the quarters that it slept through, and opens none twice', async () => {
    await addProject(given.database)
    clock.advance(DAY_MS)
    await runSchedule(tools())
    clock.set(at('2027-07-01T00:00:00Z') + DAY_MS)
    await addProject(given.database, { organisation: 'Borealis', createdAt: at('2027-05-01T00:00:00Z') })
    await twoAtOnce()
    await twoAtOnce()
    assert.deepEqual(
      (await reports()).map(report => report.quarter),
      ['2026-3', '2026-4', '2027-1', '2027-2', '2027-2'],
    )
  })

  it('goes through no projects, reports, tokens or events where nothing is to be done', async () => {
    await addProject(given.database)
    const { id } = await token({ expiresAt: clock.now() + 1 })
    await given.database.knex('access_tokens').where({ id }).update({ revoked_at: clock.now() })
    clock.advance(DAY_MS)
    await runSchedule(tools())
    const statements: string[] = []
    const note = ({ sql }: { sql: string }) => statements.push(sql)
    given.database.knex.on('query', note)
    await runSchedule(tools())
    given.database.knex.removeListener('query', note)
    assert.equal(statements.filter(sql => /from projects/i.test(sql)).length, 0)
    const tokens = statements.find(sql => /from access_tokens/i.test(sql))
    assert.ok(tokens)
    const unsettled = await given.database
      .knex('access_tokens')
      .whereNull('expiry_event_at')
      .where('expires_at', '>', 0)
    assert.deepEqual(unsettled, [], 'one that was revoked before is not looked at again')
  })

  it('leaves a report that was submitted before it was opened as it is', async () => {
    const { projectId } = await addProject(given.database)
    await given.database.knex('project_reports').insert({
      id: randomUUID(),
      project_id: projectId,
      quarter: '2026-3',
      due_date: '2026-10-30',
      status: 'submitted',
      created_at: 1,
      updated_at: 1,
    })
    await runSchedule(tools())
    assert.deepEqual(
      (await reports()).map(report => report.status),
      ['submitted'],
    )
  })

  it('emits overdue once, after the due date and not on it, to the webhooks that are to have it', async () => {
    const { projectId, organisationId } = await addProject(given.database)
    const webhookId = await webhook()
    await runSchedule(tools())
    clock.set(at('2026-10-30T23:59:59Z'))
    await runSchedule(tools())
    assert.deepEqual(await events('project_report_quarterly_overdue'), [])
    clock.set(at('2026-10-31T00:00:00Z'))
    await twoAtOnce()
    await twoAtOnce()
    const emitted = await events('project_report_quarterly_overdue')
    assert.equal(emitted.length, 1)
    const [report] = await reports()
    assert.deepEqual(JSON.parse(emitted[0].payload), {
      projectReport: { id: report.id, projectId, quarter: '2026-3' },
    })
    assert.deepEqual([emitted[0].project_id, emitted[0].organisation_id], [projectId, organisationId])
    assert.equal(report.overdue_at, clock.now())
    assert.deepEqual(await given.database.knex('deliveries').pluck('webhook_id'), [webhookId])
    assert.equal((await given.database.knex('delivery_queue')).length, 1)
  })

  it('emits no overdue for a report that was submitted', async () => {
    await addProject(given.database)
    await runSchedule(tools())
    await given.database.knex('project_reports').update({ status: 'submitted' })
    clock.set(at('2026-12-01T00:00:00Z'))
    await runSchedule(tools())
    assert.deepEqual(await events('project_report_quarterly_overdue'), [])
  })

  it('emits token_expired once, at the time, to the organisations that the token saw', async () => {
    const { organisationId } = await addProject(given.database)
    const other = await addProject(given.database, { organisation: 'Borealis' })
    const expiresAt = clock.now() + DAY_MS
    const some = await token({ organisationIds: [organisationId, other.organisationId], expiresAt })
    const one = await token({ organisationIds: [organisationId], expiresAt })
    const alike = await token({ organisationIds: [organisationId], expiresAt })
    const all = await token({ expiresAt })
    await token()
    clock.set(expiresAt - 1)
    await runSchedule(tools())
    assert.deepEqual(await events('token_expired'), [])
    clock.set(expiresAt)
    await twoAtOnce()
    await twoAtOnce()
    const emitted = await events('token_expired')
    const of = (id: string) => emitted.filter(event => JSON.parse(event.payload).accessTokenId === id)
    assert.equal(emitted.length, 4)
    assert.equal(of(all.id)[0].all_organisations, 1)
    for (const { id } of [one, alike]) assert.equal(of(id)[0].organisation_id, organisationId)
    const shared = await given.database.knex('event_organisations').pluck('organisation_id')
    assert.deepEqual(shared.toSorted(), [organisationId, other.organisationId].toSorted())
    assert.equal(of(some.id).length, 1)
  })

  it('emits nothing for a token that was revoked before it expired', async () => {
    const expiresAt = clock.now() + DAY_MS
    const { id } = await token({ expiresAt })
    await given.database
      .knex('access_tokens')
      .where({ id })
      .update({ revoked_at: expiresAt - 1 })
    clock.set(expiresAt + DAY_MS)
    await runSchedule(tools())
    assert.deepEqual(await events('token_expired'), [])
  })

  it('purges events past their retention with all that is theirs, and keeps what is still owed', async () => {
    await webhook()
    const old = clock.now()
    const insert = async (status: string, created_at: number) => {
      const eventId = randomUUID()
      const deliveryId = randomUUID()
      const [{ id: webhookId }] = await given.database.knex('webhooks')
      await given.database
        .knex('events')
        .insert({ id: eventId, type: 'token_expired', payload: '{}', created_at, all_organisations: 1 })
      await given.database.knex('deliveries').insert({
        id: deliveryId,
        event_id: eventId,
        event_type: 'token_expired',
        webhook_id: webhookId,
        status,
        created_at,
      })
      await given.database.knex('attempts').insert({ delivery_id: deliveryId, number: 1, started_at: created_at })
      return eventId
    }
    for (let n = 0; n < 3; n++) await insert('delivered', old)
    const owed = await insert('pending', old)
    clock.set(old + RETENTION_DAYS * DAY_MS)
    const young = await insert('delivered', old + 1)
    await runSchedule(tools())
    assert.equal((await given.database.knex('events')).length, 5, 'on the last day they are still there')
    clock.advance(1)
    await twoAtOnce()
    const kept = await given.database.knex('events').pluck('id')
    assert.deepEqual(kept.toSorted(), [owed, young].toSorted())
    assert.equal((await given.database.knex('deliveries')).length, 2)
    assert.equal((await given.database.knex('attempts')).length, 2)
  })

  it('forgets signatures that the clock window keeps out', async () => {
    await given.database.knex('used_signatures').insert([
      { signature_hash: 'old', expires_at: clock.now() - 1 },
      { signature_hash: 'young', expires_at: clock.now() },
    ])
    await runSchedule(tools())
    assert.deepEqual(await given.database.knex('used_signatures').pluck('signature_hash'), ['young'])
  })

  it('keeps every other part of the schedule when one fails', async () => {
    await token({ expiresAt: clock.now() + 1 })
    clock.advance(1)
    const database = { ...given.database, transaction: given.database.transaction }
    await addProject(given.database)
    let failures = 0
    database.transaction = work => {
      failures += 1
      return failures === 1 ? Promise.reject(new Error('no')) : given.database.transaction(work)
    }
    await runSchedule(tools(database))
    assert.equal((await reports()).length, 0)
    assert.equal((await events('token_expired')).length, 1)
  })

  it('keeps one part of the schedule while another has work without end', async () => {
    const often = Promise.withResolvers<void>()
    let rounds = 0
    const endless = { name: 'endless', everyMs: 0, largestPart: 1 / 2, begin: () => async () => true }
    const begin = () => {
      rounds += 1
      if (rounds === 5) often.resolve()
      return async () => false
    }
    const scheduler = startScheduler(tools(), [endless, { name: 'often', everyMs: 1, largestPart: 1, begin }])
    await often.promise
    await scheduler.stop()
  })

  it('runs at once when started, tells of events, and stops when told to', async () => {
    await token({ expiresAt: clock.now() + 1 })
    clock.advance(1)
    const told = Promise.withResolvers<void>()
    const scheduler = startScheduler({ ...tools(), onEvents: told.resolve })
    await told.promise
    await scheduler.stop()
    assert.equal((await events('token_expired')).length, 1)
  })
})
