import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { startTestServer } from '../support/server.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const deploy = path.join(root, 'deploy')
const runbooks = path.join(root, 'docs/runbooks')
const read = (name: string): string => readFileSync(path.join(deploy, name), 'utf8')
const missing = (program: string): string | false =>
  spawnSync(program, ['--version']).error ? `${program} is not installed` : false

// biome-ignore lint/suspicious/noExplicitAny: what Prometheus answers, as asked
type Answer = { status: string; error?: string; data: any }
type Panel = { title: string; type: string; targets?: { expr: string }[] }
const panels: Panel[] = JSON.parse(read('grafana.json')).panels

describe('deploy/alerts.yaml', () => {
  const noPromtool = missing('promtool')

  it('is what promtool takes for rules', { skip: noPromtool }, () => {
    const { status, stdout, stderr } = spawnSync('promtool', ['check', 'rules', '--lint-fatal', 'alerts.yaml'], {
      cwd: deploy,
      encoding: 'utf8',
    })
    assert.equal(status, 0, stdout + stderr)
  })

  it('fires where it should, and not where all is well', { skip: noPromtool }, () => {
    const { status, stdout, stderr } = spawnSync('promtool', ['test', 'rules', 'alerts.test.yaml'], {
      cwd: deploy,
      encoding: 'utf8',
    })
    assert.equal(status, 0, stdout + stderr)
  })

  it('has a test of each alert, and a page that says what to do', () => {
    const rules = read('alerts.yaml').split('- alert: ').slice(1)
    assert.ok(rules.length > 10)
    const tests = read('alerts.test.yaml')
    for (const rule of rules) {
      const name = rule.slice(0, rule.indexOf('\n'))
      assert.ok(tests.match(new RegExp(`\\b${name}\\b`, 'g'))!.length > 1, `${name} has no test that it fires`)
      const page = rule.match(/runbook_url: '\{\{ \$externalLabels\.runbooks \}\}\/(.*)'/)?.[1] ?? 'none'
      assert.ok(existsSync(path.join(runbooks, page)), `${name}: ${page}`)
      assert.ok(readFileSync(path.join(runbooks, page), 'utf8').includes(`\`${name}\``), `${page} names ${name}`)
      assert.match(rule, /severity: (page|ticket)/, name)
    }
  })
})

describe('a real Prometheus', { skip: missing('prometheus') }, () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-prometheus-'))
  const stops: (() => unknown)[] = []
  after(async () => {
    for (const stop of stops.reverse()) await stop()
    rmSync(folder, { recursive: true, force: true })
  })

  it('loads what is in deploy/, reads a server with it, and answers each panel of the dashboard', async () => {
    const metricsPort = await freePort()
    const server = await startTestServer('sqlite', { env: { TIDINGS_METRICS_PORT: String(metricsPort) } })
    let stopped: Promise<void> | undefined
    const stopServer = () => (stopped ??= server.stop())
    stops.push(stopServer)
    // The same alerts, which wait for seconds.
    writeFileSync(path.join(folder, 'alerts.yaml'), read('alerts.yaml').replaceAll(/for: \d+[mh]$/gm, 'for: 2s'))
    writeFileSync(
      path.join(folder, 'prometheus.yml'),
      read('prometheus.yml').replace('127.0.0.1:9400', `127.0.0.1:${metricsPort}`).replaceAll('30s', '1s'),
    )
    const port = await freePort()
    const args = ['--config.file=prometheus.yml', '--storage.tsdb.path=data', `--web.listen-address=127.0.0.1:${port}`]
    const prometheus = spawn('prometheus', args, { cwd: folder, stdio: 'ignore' })
    stops.push(async () => {
      const ended = once(prometheus, 'exit')
      if (prometheus.exitCode === null && prometheus.kill()) await ended
    })
    const get = async (route: string): Promise<Answer> =>
      (await (await fetch(`http://127.0.0.1:${port}/api/v1/${route}`)).json()) as Answer
    const ask = (expression: string) => get(`query?query=${encodeURIComponent(expression)}`)
    await server.graphql('{ viewer { id } }')
    await eventually(
      'Prometheus to have read the server',
      () => ask('tidings_requests_total{job="tidings", operation="viewer"}'),
      ({ data }) => data.result.length === 1,
      { timeoutMs: 60_000, everyMs: 200 },
    )
    const health = (groups: { rules: { name: string; health: string; lastError?: string }[] }[]) =>
      groups.flatMap(({ rules }) => rules).filter(rule => rule.health !== 'ok')
    await eventually(
      'each alert to have been evaluated',
      () => get('rules'),
      ({ data }) => data.groups.length > 0 && health(data.groups).length === 0,
      { everyMs: 200 },
    )
    const filled = async (): Promise<number> => {
      let found = 0
      for (const { title, targets = [] } of panels) {
        for (const { expr } of targets) {
          const asked = expr.replaceAll('$job', 'tidings').replaceAll('$instance', '.*')
          const { status, error, data } = await ask(asked.replaceAll('$__rate_interval', '1m'))
          assert.equal(status, 'success', `${title}: ${error}`)
          if (data.result.length > 0) found += 1
        }
      }
      return found
    }
    // Those of deliveries need some.
    await eventually('most panels to have something to show', filled, found => found >= 20, {
      timeoutMs: 60_000,
      everyMs: 1_000,
    })
    const firing = async (): Promise<string[]> =>
      (await get('alerts')).data.alerts
        .filter(({ state }: { state: string }) => state === 'firing')
        .map(({ labels }: { labels: { alertname: string } }) => labels.alertname)
    assert.ok(!(await firing()).includes('TidingsDown'))
    await stopServer()
    await eventually(
      'the alerts',
      firing,
      names => names.includes('TidingsDown') && names.includes('TidingsServerDown'),
      {
        timeoutMs: 60_000,
        everyMs: 200,
      },
    )
    const [alert] = (await get('alerts')).data.alerts
    assert.match(alert.annotations.runbook_url, /^file:\/\/\/.*\/runbooks\/[\w-]+\.md$/)
  })
})

describe('deploy/grafana.json', () => {
  it('has a unique id and a place of its own for each panel', () => {
    const all = panels as unknown as { id: number; gridPos: { x: number; y: number; w: number; h: number } }[]
    assert.equal(new Set(all.map(({ id }) => id)).size, all.length)
    const cells = all.flatMap(({ gridPos: { x, y, w, h } }) =>
      Array.from({ length: w * h }, (_, n) => `${x + (n % w)},${y + Math.floor(n / w)}`),
    )
    assert.equal(new Set(cells).size, cells.length)
    assert.ok(all.every(({ gridPos: { x, w } }) => x + w <= 24))
  })
})
