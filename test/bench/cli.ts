import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { launchSandbox } from '../cli/sandbox-server.ts'

// Measures the start of the command line and one request, compared with a bare Node that does the same. Each pair runs
// in turns, so that other load affects both; medians are compared.

const { values: options } = parseArgs({ options: { rounds: { type: 'string', default: '25' } } })
const ROUNDS = Number(options.rounds)

const home = mkdtempSync(join(tmpdir(), 'tidings-bench-'))
const { url, stop } = await launchSandbox(home, { TIDINGS_LOG_LEVEL: 'error' })
const { profiles } = JSON.parse(readFileSync(join(home, 'tidings', 'profiles.json'), 'utf8'))
const { apiKey, apiSecret } = profiles.sandbox

const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
const bare = join(home, 'bare.mjs')
writeFileSync(
  bare,
  `import { createHash, createHmac, randomUUID } from 'node:crypto'
const url = new URL('${url}/graphql')
const query = \`query ($query: MangoQuery) { rows: webhooks(query: $query) {
  id url events organisationIds projectIds status statusReason createdAt updatedAt lastDeliveryAt
  health { rejected dropped pending cancelled delivered } } }\`
const body = JSON.stringify({ query, variables: { query: { sort: [{ createdAt: 'desc' }] } } })
const hash = createHash('sha256').update(body).digest('base64')
const date = new Date().toUTCString()
const headers = { 'x-date': date, host: url.host, 'x-content-sha256': hash, 'x-nonce': randomUUID() }
const toSign = ['POST', url.pathname, Object.values(headers).join(';')].join('\\n')
const signature = createHmac('sha256', Buffer.from('${apiSecret}', 'base64')).update(toSign).digest('base64')
const names = Object.keys(headers).join(';')
const authorization = \`HMAC-SHA256 Credential=${apiKey}&SignedHeaders=\${names}&Signature=\${signature}\`
const json = { 'content-type': 'application/json', accept: 'application/json' }
const response = await fetch(url, { method: 'POST', headers: { ...headers, authorization, ...json }, body })
const { data, errors } = await response.json()
if (errors) throw new Error(errors[0].message)
console.log(JSON.stringify(data.rows, null, 2))
`,
)

const run = (args: string[]): number => {
  const startedAt = performance.now()
  const { status, stderr } = spawnSync(process.execPath, args, { env: { ...process.env, XDG_CONFIG_HOME: home } })
  if (status !== 0) throw new Error(`${args.join(' ')} ended with ${status}: ${stderr}`)
  return performance.now() - startedAt
}
const median = (values: number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!

const compare = (name: string, ours: string[], theirs: string[], limit: number): void => {
  const times = { ours: [] as number[], theirs: [] as number[] }
  for (let round = -3; round < ROUNDS; round += 1) {
    const [one, other] = [run(ours), run(theirs)]
    // The first rounds fill the caches.
    if (round >= 0) {
      times.ours.push(one)
      times.theirs.push(other)
    }
  }
  const [one, other] = [median(times.ours), median(times.theirs)]
  console.log(
    `${name}: ${one.toFixed(0)} ms, bare Node ${other.toFixed(0)} ms, ratio ${(one / other).toFixed(2)} (at most ` +
      `${limit})`,
  )
}

try {
  compare('tidings --version', [program, '--version'], ['-e', '0'], 1.3)
  compare('tidings webhooks list', [program, 'webhooks', 'list'], [bare], 1.5)
} finally {
  await stop()
  rmSync(home, { recursive: true, force: true })
}
