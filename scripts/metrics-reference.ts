// node scripts/metrics-reference.ts: writes docs/reference/metrics.md from the metrics themselves. A test says when to
// run it again.
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { connect } from '../server/database/connect.ts'
import { createMetrics } from '../server/metrics/metrics.ts'

type Described = { name: string; help: string; type: string; labelNames?: string[]; upperBounds?: number[] }

/** Every metric of Tidings itself, as a server with all roles has them. */
export const ownMetrics = async (): Promise<Described[]> => {
  const metrics = createMetrics()
  const database = await connect('sqlite::memory:')
  try {
    metrics.compareWith({ now: Date.now })
    metrics.watchPool('api', database)
    metrics.watchWaits(() => [])
    metrics.askOf(database, { now: Date.now }, 30)
    const all = [metrics.registry, metrics.shared].flatMap(registry => registry.getMetricsAsArray())
    return (all as unknown as Described[]).filter(({ name }) => name.startsWith('tidings_'))
  } finally {
    metrics.stop()
    await database.close()
  }
}

const typeOf = (metric: Described): string => ('upperBounds' in metric ? 'histogram' : metric.type)

export const metricsPage = async (): Promise<string> => {
  const found = (await ownMetrics()).toSorted((a, b) => (a.name < b.name ? -1 : 1))
  const rows = found.map(metric => {
    const labels = (metric.labelNames ?? []).map(name => `\`${name}\``).join(', ')
    return `| \`${metric.name}\` | ${typeOf(metric)} | ${labels} | ${metric.help} |`
  })
  return `# Metrics

\`GET /metrics\` answers in Prometheus' text format. With \`TIDINGS_METRICS_PORT\` that port serves it, and the public
one does not. The processes of one \`tidings server start --processes\` answer together. Metrics from the database
(\`tidings_queue_…\`, \`tidings_webhooks\`, \`tidings_purge_lag_seconds\`) are the same on every server: take
\`max\`, not \`sum\`. A process queries them when they are scraped, at most every 10 s and for at most 1 % of the
time. If the database has been unreachable for two minutes, they are missing and \`tidings_database_up\` is 0.

There are also \`process_…\` and \`nodejs_…\`: memory, processor time, open files, garbage collection.
[The dashboard](../../deploy/grafana.json) shows them, and [the alerts](../../deploy/alerts.yaml) use them.

<!-- Written by scripts/metrics-reference.ts. -->

| Name | Type | Labels | |
|---|---|---|---|
${rows.join('\n')}
`
}

if (import.meta.main) {
  const page = fileURLToPath(new URL('../docs/reference/metrics.md', import.meta.url))
  writeFileSync(page, await metricsPage())
}
