import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { after, afterEach, before, beforeEach, describe, it, mock } from 'node:test'
import { Registry } from 'prom-client'
import { metricsPage, ownMetrics } from '../../scripts/metrics-reference.ts'
import { watchEventLoop } from '../../server/metrics/event-loop.ts'
import { createMetrics } from '../../server/metrics/metrics.ts'
import { worstWebhooks } from '../../server/metrics/worst-webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { puller } from '../support/puller.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, sendGraphql, startTestServer, type TestServer } from '../support/server.ts'

/** The value of a metric with these labels, whatever else it is labelled with. */
const figureOf = (text: string, name: string, labels: Record<string, string> = {}): number | undefined => {
  const lines = text.split('\n').filter(line => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
  const found = lines.filter(line => Object.entries(labels).every(([key, value]) => line.includes(`${key}="${value}"`)))
  return found.length === 0 ? undefined : found.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0)
}

describeEachEngine('/metrics', engine => {
  let server: TestServer
  let receiver: Receiver
  before(async () => {
    server = await startTestServer(engine)
    // The ping, then a failure.
    receiver = await startReceiver({ answer: (_request, n) => ({ status: n === 2 ? 500 : 200 }) })
  })
  after(async () => {
    await server?.stop()
    await receiver?.close()
  })
  const look = async (): Promise<string> => (await fetch(`${server.url}/metrics`)).text()

  it('tells requests by what they ask for, the code and the reason of their answer', async () => {
    await server.graphql('{ viewer { id } }')
    await server.graphql('{ organisations { id projects { id name } } webhooks { id } }')
    await server.graphql('mutation { pingWebhook(id: "00000000-0000-7000-8000-000000000000") { id } }')
    await sendGraphql(
      server.url,
      { apiKey: 'nobody', apiSecret: Buffer.alloc(32).toString('base64') },
      '{ viewer { id } }',
    )
    const text = await look()
    const told = (labels: Record<string, string>) => figureOf(text, 'tidings_requests_total', labels)
    assert.equal(told({ operation: 'viewer', code: 'OK', reason: '' }), 1)
    assert.equal(told({ operation: 'several', code: 'OK' }), 1)
    assert.equal(told({ operation: 'pingWebhook', code: 'NOT_FOUND' }), 1)
    assert.equal(told({ operation: 'none', code: 'UNAUTHENTICATED', reason: 'unknown_key' }), 1)
    assert.equal(figureOf(text, 'tidings_request_duration_seconds_count', { operation: 'viewer' }), 1)
  })

  it('tells what became of attempts, how long endpoints took, and the webhooks that fail', async () => {
    const { projectId, userId } = await addProject(server.database)
    const { data } = await server.graphql('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
      url: receiver.url,
    })
    await server.graphql(
      `mutation ($projectId: UUID!, $userId: UUID!) {
        submitProjectReport(projectId: $projectId, quarter: "2026-1", submitterId: $userId) { id } }`,
      { projectId, userId },
    )
    const text = await eventually(
      'the retry to be delivered',
      look,
      text => figureOf(text, 'tidings_attempts_total', { outcome: 'delivered', result: '2xx' }) === 1,
    )
    assert.equal(figureOf(text, 'tidings_attempts_total', { outcome: 'pending', result: '5xx' }), 1)
    assert.equal(figureOf(text, 'tidings_attempt_duration_seconds_count'), 2)
    assert.equal(figureOf(text, 'tidings_delivery_delay_seconds_count'), 1)
    const webhook_id = data.createWebhook.id
    assert.equal(figureOf(text, 'tidings_webhook_attempts', { webhook_id, result: 'failed' }), 1)
    assert.equal(figureOf(text, 'tidings_webhook_attempts', { webhook_id, result: 'delivered' }), 1)
    assert.ok(figureOf(text, 'tidings_settle_duration_seconds_count')! >= 2)
    assert.ok(figureOf(text, 'tidings_claim_duration_seconds_count')! >= 1)
    assert.equal(figureOf(text, 'tidings_lease_takeovers_total'), 0)
  })

  it('tells how long what clients pull has waited for its first attempt, whether they answer or not', async () => {
    await server.database.knex('webhooks').update({ status: 'disabled' })
    const client = puller(server)
    const { id } = await client.register()
    const begun = async () => figureOf(await look(), 'tidings_delivery_delay_seconds_count')!
    const before = await begun()
    const { projectId, userId } = await addProject(server.database)
    for (const quarter of ['2026-1', '2026-2'])
      await server.graphql(
        `mutation ($projectId: UUID!, $quarter: String!, $userId: UUID!) {
          submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $userId) { id } }`,
        { projectId, quarter, userId },
      )
    const [answered, forgotten] = await client.take(id, { limit: 2 })
    await client.answer([answered!])
    assert.equal(await begun(), before + 1)
    // As if the lease were over.
    const queued = server.database.knex('delivery_queue').where({ delivery_id: forgotten!.deliveryId })
    await queued.decrement('due_at', 30_000)
    const [again] = await client.take(id, { waitSeconds: 10 })
    assert.equal(await begun(), before + 2)
    await client.answer([again!])
    assert.equal(await begun(), before + 2)
  })

  it('tells what the process has of connections, and whether the scheduler keeps its time', async () => {
    const text = await look()
    const pools = server.config.databaseUrl.startsWith('sqlite:') ? ['api'] : ['api', 'delivery']
    for (const pool of pools) {
      assert.equal(figureOf(text, 'tidings_database_connections', { pool, state: 'waited for' }), 0, pool)
      assert.ok(figureOf(text, 'tidings_database_connection_wait_seconds_count', { pool })! > 0, pool)
    }
    await eventually(
      'each step to have been done',
      look,
      told => (told.match(/^tidings_scheduler_step_age_seconds\{/gm)?.length ?? 0) >= 6,
    )
  })

  it('is computed once for all who ask at once', async () => {
    await look()
    const texts = await Promise.all(Array.from({ length: 20 }, look))
    assert.ok(new Set(texts).size <= 3)
  })

  it('is what promtool takes for metrics', async t => {
    const { error, status, stdout } = spawnSync('promtool', ['check', 'metrics'], { input: await look() })
    if (error) return t.skip('promtool is not installed')
    // What prom-client itself has, as nodejs_active_handles_total, is not ours to name.
    const ours = String(stdout)
      .split('\n')
      .filter(line => line.startsWith('tidings_'))
    assert.deepEqual(ours, [])
    assert.ok(status === 0 || status === 3, String(stdout))
  })
})

describe('the lag of the event loop', () => {
  let nowMs = 0
  let activeMs = 0
  let loopCount = 0
  let stop = () => {}
  let registry: Registry
  beforeEach(() => {
    nowMs = 1_000_000
    mock.timers.enable({ apis: ['setTimeout'] })
    mock.method(performance, 'now', () => nowMs)
    const present = () => ({ active: activeMs, idle: nowMs - activeMs, utilization: 0 })
    type Utilization = ReturnType<typeof present>
    mock.method(performance, 'eventLoopUtilization', (now?: Utilization, before?: Utilization) => {
      if (!now || !before) return present()
      const active = now.active - before.active
      return { active, idle: 0, utilization: active / (active + now.idle - before.idle) }
    })
    mock.getter(performance.nodeTiming, 'uvMetricsInfo', () => ({ loopCount, events: 0, eventsWaiting: 0 }))
    registry = new Registry()
    stop = watchEventLoop(registry).stop
  })
  afterEach(() => {
    stop()
    mock.restoreAll()
    mock.timers.reset()
  })

  /** Time passes, of which the loop is active for a part. Its timers fire afterwards. */
  const pass = (ms: number, { active = 0, turns = 1 } = {}): void => {
    nowMs += ms
    activeMs += active
    loopCount += turns
    mock.timers.tick(ms)
  }
  const counted = async () => {
    const text = await registry.metrics()
    const figure = (name: string, labels = {}) => figureOf(text, `tidings_event_loop_lag_seconds_${name}`, labels)
    return {
      inTime: figure('bucket', { le: '0.005' }),
      upTo100Ms: figure('bucket', { le: '0.1' }),
      count: figure('count'),
      lateMs: Math.round(1000 * figure('sum')!),
    }
  }

  it('is none while a process works', async () => {
    for (let n = 0; n < 99; n++) pass(100, { active: 60, turns: 40 })
    pass(180, { active: 60, turns: 40 })
    assert.deepEqual(await counted(), { inTime: 99, upTo100Ms: 100, count: 100, lateMs: 80 })
  })

  it('is none at rest, where a second counts as ten looks', async () => {
    pass(100)
    for (let n = 0; n < 5; n++) pass(n === 0 ? 900 : 1_000, { active: 2 })
    assert.deepEqual(await counted(), { inTime: 50, upTo100Ms: 50, count: 50, lateMs: 0 })
  })

  it('is looked at each second in a process that nothing else wakes, however slow the machine', async () => {
    pass(100, { active: 8, turns: 2 })
    pass(900, { active: 8, turns: 2 })
    assert.equal((await counted()).count, 10)
    pass(100, { active: 60, turns: 2 })
    assert.equal((await counted()).count, 10, 'not before the next second')
  })

  it('is told of a block in a second at rest, though it ended before the look', async () => {
    pass(100)
    pass(900)
    pass(1_000, { active: 420, turns: 4 })
    assert.deepEqual(await counted(), { inTime: 19, upTo100Ms: 19, count: 20, lateMs: 400 })
    pass(100, { active: 60, turns: 40 })
    assert.equal((await counted()).count, 21, 'and the next look comes soon')
  })

  it('is not told of many short turns in a second at rest', async () => {
    pass(100)
    pass(900)
    pass(1_000, { active: 420, turns: 100 })
    assert.deepEqual(await counted(), { inTime: 20, upTo100Ms: 20, count: 20, lateMs: 0 })
  })
})

describe('an idle process', () => {
  it('does not tell of a lag that is the time between two looks', async () => {
    const metrics = createMetrics()
    assert.doesNotMatch(await metrics.registry.metrics(), /nodejs_eventloop_lag/)
    metrics.stop()
  })
})

describe('the webhooks that fail', () => {
  it('are the hundred that failed most in the last ten minutes, however many there are', async () => {
    const registry = new Registry()
    let nowMs = 0
    const { attempted } = worstWebhooks(registry, () => nowMs)
    for (let n = 0; n < 150; n++) {
      for (let failures = 0; failures < n; failures++) attempted(`webhook ${n}`, false)
      attempted(`webhook ${n}`, true)
    }
    const failed = async (webhook_id: string) =>
      figureOf(await registry.metrics(), 'tidings_webhook_attempts', { webhook_id, result: 'failed' })
    assert.equal(await failed('webhook 149'), 149)
    assert.equal(await failed('webhook 50'), 50)
    assert.equal(await failed('webhook 49'), undefined)
    nowMs += 9 * 60_000
    attempted('webhook 149', false)
    assert.equal(await failed('webhook 149'), 150)
    nowMs += 2 * 60_000
    assert.equal(await failed('webhook 149'), 1)
    assert.equal(await failed('webhook 50'), undefined)
  })
})

describe('the page of metrics', () => {
  it('is that of the metrics', async () => {
    const written = readFileSync(new URL('../../docs/reference/metrics.md', import.meta.url), 'utf8')
    assert.equal(written, await metricsPage(), 'Write it again: node scripts/metrics-reference.ts')
  })

  it('is read by what watches them: no panel and no alert asks for a metric that is not there', async () => {
    const names = new Set((await ownMetrics()).map(({ name }) => name))
    for (const file of ['grafana.json', 'alerts.yaml']) {
      const text = readFileSync(new URL(`../../deploy/${file}`, import.meta.url), 'utf8')
      const asked = [...text.matchAll(/tidings_\w+/g)].map(([name]) => name.replace(/_(bucket|sum|count)$/, ''))
      assert.ok(asked.length > 10, file)
      assert.deepEqual(
        asked.filter(name => !names.has(name)),
        [],
        file,
      )
    }
  })
})
