import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { after, before, describe, it, mock } from 'node:test'
import { Registry } from 'prom-client'
import { metricsPage, ownMetrics } from '../../scripts/metrics-reference.ts'
import { watchEventLoop } from '../../server/metrics/event-loop.ts'
import { createMetrics } from '../../server/metrics/metrics.ts'
import { worstWebhooks } from '../../server/metrics/worst-webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
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

describe('an idle process', () => {
  it('has no lag of its event loop', async () => {
    mock.timers.enable({ apis: ['setInterval'] })
    let nowMs = 0
    const { mock: now } = mock.method(performance, 'now', () => nowMs)
    const registry = new Registry()
    const { stop } = watchEventLoop(registry)
    const pass = (ms: number) => {
      nowMs += ms
      mock.timers.tick(100)
    }
    try {
      for (let n = 0; n < 99; n++) pass(100)
      pass(180)
      const text = await registry.metrics()
      assert.equal(figureOf(text, 'tidings_event_loop_lag_seconds_bucket', { le: '0.005' }), 99)
      assert.equal(figureOf(text, 'tidings_event_loop_lag_seconds_bucket', { le: '0.1' }), 100)
      assert.ok(Math.abs(figureOf(text, 'tidings_event_loop_lag_seconds_sum')! - 0.08) < 1e-9)
    } finally {
      stop()
      now.restore()
      mock.timers.reset()
    }
  })

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
