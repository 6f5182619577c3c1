import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, it } from 'node:test'
import { insertMany, rows } from '../../server/database/connect.ts'
import type { Transaction } from '../../server/database/transaction.ts'
import { LEASE_MS, newLease } from '../../server/delivery/leases.ts'
import type { Outcome } from '../../server/delivery/outcome.ts'
import { claim, type Job } from '../../server/delivery/queue.ts'
import { settle } from '../../server/delivery/settle.ts'
import { countHour, hoursToCount } from '../../server/domain/delivery-hours.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { deliveries } from '../../server/domain/resources.ts'
import { visibleTo } from '../../server/domain/visibility.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { newId } from '../../server/ids.ts'
import { createLog } from '../../server/log.ts'
import { type Count, count } from '../../server/mango/find.ts'
import { countHours } from '../../server/scheduler/hours.ts'
import { purge } from '../../server/scheduler/purge.ts'
import type { Step } from '../../server/scheduler/step.ts'
import { toIso } from '../../shared/time.ts'
import { deliveryStatuses } from '../../shared/vocabulary.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { DISABLING } from '../support/webhooks.ts'

/** Over four days: ten an hour. */
const DELIVERIES = 1_000
const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const NOW = Date.parse('2026-11-24T12:34:56.789Z')
const ENDED = deliveryStatuses.filter(status => status !== 'pending')

describeEachEngine('counts of hours that are over', engine => {
  const clock = testClock(NOW)
  let fixture: Fixture

  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await fixture.reset()
    for (const table of ['delivery_hours', 'delivery_hour_changes', 'processes']) {
      await fixture.database.knex(table).delete()
    }
    clock.set(NOW)
  })
  after(() => fixture?.stop())

  const everything = { id: randomUUID(), seesAllOrganisations: true } as AccessToken
  const counted = (selector: object, by: string[] = ['status'], token = everything): Promise<Count[]> => {
    const visible = visibleTo(token)
    const { knex } = fixture.database
    return count(knex, deliveries, { selector, by }, visible(deliveries), { related: visible })
  }

  const countAll = async (): Promise<number> => {
    const owed = await hoursToCount(fixture.database.knex, clock.now())
    for (const hourAt of owed) await countHour(fixture.database, hourAt)
    return owed.length
  }

  const round = async (step: Step): Promise<void> => {
    const batch = step.begin({
      database: fixture.database,
      clock,
      log: createLog('silent'),
      reportDueDays: 30,
      retentionDays: 30,
      onEvents: () => {},
    })
    while (await batch());
  }

  /** Deliveries of three webhooks over four days, those of some hours missing. */
  const fill = async (): Promise<string[]> => {
    const webhookIds = await Promise.all(['a', 'b', 'c'].map(name => fixture.webhook(`http://127.0.0.1:9/${name}`)))
    const made = Array.from({ length: DELIVERIES }, (_, n) => {
      const created_at = NOW - 4 * DAY_MS + Math.floor((n * 4 * DAY_MS) / DELIVERIES)
      return {
        ...{ id: newId(created_at), event_id: randomUUID(), webhook_id: webhookIds[n % 3]!, event_type: 'ping' },
        ...{ status: ENDED[n % 7 === 0 ? n % ENDED.length : 0]!, created_at, finished_at: created_at + 5 },
      }
    })
    await insertMany(
      fixture.database.knex,
      'deliveries',
      made.filter(({ created_at }) => Math.floor(created_at / HOUR_MS) % 10 !== 3),
    )
    return webhookIds
  }

  const between = (fromMs: number, toMs: number) => [
    { createdAt: { $gte: toIso(fromMs) } },
    { createdAt: { $lt: toIso(toMs) } },
  ]

  it('are the counts of their deliveries, of any span, webhooks and states', async () => {
    const [first, second] = (await fill()) as [string, string]
    const spans = [
      [],
      between(NOW - 3 * DAY_MS + 1, NOW - 2 * DAY_MS),
      between(Math.floor(NOW / HOUR_MS) * HOUR_MS - DAY_MS, Math.floor(NOW / HOUR_MS) * HOUR_MS),
      [{ createdAt: { $gt: toIso(NOW - DAY_MS) } }],
      [{ createdAt: { $lte: toIso(Math.floor(NOW / HOUR_MS) * HOUR_MS - DAY_MS) } }],
    ]
    const others = [
      [],
      [{ webhookId: first }],
      [{ webhookId: { $in: [first, second] } }, { status: 'delivered' }],
      [{ status: { $in: ['rejected', 'dropped'] } }],
      // What hours do not answer.
      [{ webhookId: first }, { attemptCount: 0 }],
      [{ $or: [{ webhookId: first }, { status: 'dropped' }] }],
      [{ webhookId: first }, { webhookId: second }],
    ]
    const bys = [
      [],
      ['status'],
      ['createdAt:day@Europe/Berlin', 'status'],
      ['webhookId', 'createdAt:month'],
      ['createdAt:hour@Asia/Kolkata'],
      ['createdAt:minute', 'eventType'],
    ]
    const questions = spans.flatMap(span => others.flatMap(other => bys.map(by => ({ $and: [...span, ...other], by }))))
    const ask = () => Promise.all(questions.map(({ $and, by }) => counted({ $and }, by)))
    const expected = await ask()
    assert.ok((await countAll()) > 90)
    for (const [index, found] of (await ask()).entries()) {
      assert.deepEqual(found, expected[index], JSON.stringify(questions[index]))
    }
  })

  it('cost few statements for an hour with few deliveries', async () => {
    const hourAt = Math.floor(NOW / HOUR_MS) * HOUR_MS - DAY_MS
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    const made = [0, 59_999, 20 * 60_000, HOUR_MS - 1, HOUR_MS].map(ms => ({
      ...{ id: newId(hourAt + ms), event_id: randomUUID(), webhook_id: webhookId, event_type: 'ping' },
      ...{ status: 'delivered', created_at: hourAt + ms },
    }))
    await insertMany(fixture.database.knex, 'deliveries', made)
    let statements = 0
    const count = () => statements++
    fixture.database.knex.on('query', count)
    await countHour(fixture.database, hourAt)
    fixture.database.knex.removeListener('query', count)
    const ofWebhook = { webhook_id: webhookId, hour_at: hourAt }
    assert.equal((await fixture.database.knex('delivery_hours').where(ofWebhook).first()).number, 4)
    assert.ok(statements > 5 && statements < 20, `${statements} statements`)
  })

  it('are not of what came after them: the last two hours, and hours that have changed', async () => {
    await fill()
    await countAll()
    const before = await counted({}, [])
    const created_at = NOW - 1_000
    const row = { event_id: randomUUID(), webhook_id: randomUUID(), event_type: 'ping', status: 'delivered' }
    await insertMany(fixture.database.knex, 'deliveries', [{ id: newId(created_at), ...row, created_at }])
    assert.equal((await counted({}, []))[0]!.count, before[0]!.count + 1)
  })

  it('read no delivery of those hours, and each statement has an index, of a webhook as of all', async () => {
    const [webhookId] = await fill()
    await countAll()
    const { knex, dialect } = fixture.database
    const tables = ['deliveries', 'delivery_hours', 'delivery_hour_changes']
    await knex.raw(dialect.isEmbedded ? 'ANALYZE' : `ANALYZE TABLE ${tables.join(', ')}`)
    type Statement = { sql: string; bindings: (string | number)[] }
    const statements: Statement[] = []
    // The fixture's keyring looks for signing keys meanwhile.
    const listen = (statement: Statement) => void (/deliver/.test(statement.sql) && statements.push(statement))
    knex.on('query', listen)
    const statuses = { status: { $in: [...deliveryStatuses] } }
    try {
      for (const asked of [[], [{ webhookId }]]) {
        for (const days of [1, 3]) {
          await counted({ $and: [...asked, ...between(NOW - days * DAY_MS, NOW), statuses] }, [
            'createdAt:hour',
            'status',
          ])
        }
      }
    } finally {
      knex.removeListener('query', listen)
    }
    assert.equal(statements.length, 8)
    for (const { sql, bindings } of statements) {
      const plan = await rows<Record<string, unknown>>(knex, dialect.explain + sql, bindings)
      const scanned = plan.filter(row => row.type === 'ALL' && !String(row.table).startsWith('<'))
      const embedded = plan.filter(({ detail }) => /^SCAN (deliveries|delivery_hours)$/.test(String(detail)))
      assert.deepEqual([...scanned, ...embedded], [], sql)
      if (!/from `?deliveries/i.test(sql)) continue
      // Deliveries before the first whole hour, and since the last that is counted.
      const found = await rows<{ number: number }>(knex, `SELECT SUM(number) AS number FROM (${sql}) t`, bindings)
      assert.ok(Number(found[0]!.number) < DELIVERIES / 25, sql)
    }
  })

  it('are not for a token that sees some organisations only', async () => {
    await fill()
    await countAll()
    await fixture.database.knex('delivery_hours').where({ status: 'delivered' }).update({ number: 1_000_000 })
    assert.ok((await counted({ status: 'delivered' }, []))[0]!.count > 1_000_000)
    const limited = { ...everything, seesAllOrganisations: false }
    assert.equal((await counted({ status: 'delivered' }, [], limited))[0]!.count, 0)
  })

  /** The counts by status, after something has happened to a delivery of three hours ago. */
  const afterChange = async (change: () => Promise<unknown>): Promise<Record<string, number>> => {
    await countAll()
    const before = await counted({})
    await change()
    const found = await rows<{ status: string; number: number }>(
      fixture.database.knex,
      'SELECT status, COUNT(*) AS number FROM deliveries GROUP BY status',
    )
    const expected = Object.fromEntries(found.map(({ status, number }) => [status, Number(number)]))
    const asked = async () => Object.fromEntries((await counted({})).map(({ key, count }) => [key.status, count]))
    assert.notDeepEqual(before, await counted({}))
    assert.deepEqual(await asked(), expected)
    assert.equal(await countAll(), 1)
    assert.deepEqual(await asked(), expected)
    assert.equal(await fixture.count('delivery_hour_changes'), 0)
    return expected
  }

  const claimed = async (): Promise<Job> => {
    const lease = newLease(clock.now())
    const triage = (due: Job[]) => ({ take: due, later: [] })
    const { taken } = await claim(fixture.database, { lease, now: clock.now(), limit: 1, leaseMs: LEASE_MS, triage })
    return taken[0]!
  }
  const answered = (job: Job, statusCode: number, outcome: Outcome) => {
    const result = { kind: 'response', statusCode, body: '' } as const
    return settle(fixture.database, [{ job, startedAt: clock.now(), durationMs: 7, result, outcome }], clock.now)
  }
  const oneOfThreeHoursAgo = async (): Promise<string> => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    clock.advance(3 * HOUR_MS)
    return webhookId
  }

  it('follow a delivery that ends long after its creation', async () => {
    await oneOfThreeHoursAgo()
    const counts = await afterChange(async () => answered(await claimed(), 200, { status: 'delivered' }))
    assert.deepEqual(counts, { delivered: 1 })
  })

  it('follow a delivery that is acknowledged after another attempt was rejected', async () => {
    await oneOfThreeHoursAgo()
    const frozen = await claimed()
    clock.advance(LEASE_MS)
    await answered(await claimed(), 404, { status: 'rejected' })
    assert.deepEqual(await afterChange(() => answered(frozen, 200, { status: 'delivered' })), { delivered: 1 })
  })

  it('follow a delivery that is cancelled', async () => {
    const webhookId = await oneOfThreeHoursAgo()
    const { transaction } = fixture.database
    const disable = () => transaction(trx => leaveActive(trx, webhookId, DISABLING, clock.now()))
    assert.deepEqual(await afterChange(disable), { cancelled: 1 })
  })

  it('follow deliveries that are purged', async () => {
    await fill()
    const [eventId] = [randomUUID()]
    const created_at = NOW - 31 * DAY_MS
    const event = { id: eventId, type: 'ping', payload: '{}', all_organisations: 0, created_at }
    await insertMany(fixture.database.knex, 'events', [event])
    await insertMany(fixture.database.knex, 'deliveries', [
      {
        ...{ id: newId(NOW - 2 * DAY_MS), event_id: eventId, webhook_id: randomUUID(), event_type: 'ping' },
        ...{ status: 'delivered', created_at: NOW - 2 * DAY_MS },
      },
    ])
    await afterChange(() => round(purge))
  })

  it('are those of the process that ends first, where two count the same hour', async () => {
    await oneOfThreeHoursAgo()
    const { knex, transaction } = fixture.database
    const [hourAt] = (await hoursToCount(knex, clock.now())).slice(-1) as [number]
    const job = await claimed()
    for (const isCounted of [false, true]) {
      // One has read the hour; then a delivery of it changes, and another counts that and forgets the change.
      let isFirst = true
      const slow = async <T>(work: (trx: Transaction) => Promise<T>): Promise<T> => {
        if (isFirst) {
          isFirst = false
          if (isCounted) await answered(job, 200, { status: 'delivered' })
          await countHour(fixture.database, hourAt)
        }
        return transaction(work)
      }
      await countHour({ knex, transaction: slow as typeof transaction }, hourAt)
    }
    assert.equal(await fixture.count('delivery_hour_changes'), 0)
    assert.deepEqual(await counted({}), [{ key: { status: 'delivered' }, count: 1 }])
  })

  it('are made by the scheduler, anew by a process that starts, and not beside one of an earlier version', async () => {
    await fill()
    const known = () => fixture.database.knex('delivery_hours').where({ webhook_id: '', status: '' })
    await round(countHours)
    const hours = (await known()).length
    assert.ok(hours > 90)
    clock.advance(HOUR_MS)
    await round(countHours)
    assert.equal((await known()).length, hours + 1)
    const { nowMs } = fixture.database.dialect
    const process = { id: randomUUID(), host: 'one', pid: 1, version: '0.1.0', roles: 'api', master_keys: '' }
    await fixture.database
      .knex('processes')
      .insert({ ...process, started_at: 0, knows: '0022_pull_clients', seen_at: fixture.database.knex.raw(nowMs) })
    await round(countHours)
    assert.deepEqual(await known(), [])
  })
})
