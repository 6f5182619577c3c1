import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type Pulling, startPulling } from '../../receiver/pulling.ts'
import { connect, rows } from '../../server/database/connect.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { startReceiver } from '../support/receiver.ts'

// node test/chaos/upgrade.ts PREVIOUS: upgrades from the release in a folder (a checkout of it, installed) to this one
// under load, on the first server of TIDINGS_TEST_DATABASE_URLS. Servers of both run side by side on the newer schema.
// Counts answers lost, changes doubled, signatures let in twice, deliveries missing, and pulled ones that are sent.

const [, , previous = ''] = process.argv
const [server = ''] = (process.env.TIDINGS_TEST_DATABASE_URLS ?? '').split(',')
if (!previous || !server) throw new Error('Give the folder of the previous release, and TIDINGS_TEST_DATABASE_URLS.')
const present = fileURLToPath(new URL('../..', import.meta.url))

const PHASE_MS = 4_000
const SENDERS = 4
const PROJECTS = 2_000
/** One in this many changes is sent again unchanged to another server. */
const REPLAY_EACH = 5

const name = `tidings_upgrade_${randomBytes(4).toString('hex')}`
const admin = await connect(server, { poolSize: 1 })
await admin.knex.raw('CREATE DATABASE ?? CHARACTER SET utf8mb4', [name])
const url = new URL(server)
url.pathname = name

/** What is signed: the address of all servers together. */
const PUBLIC = new URL('http://tidings.test/graphql')

const environment = {
  TIDINGS_BASE_URL: PUBLIC.origin,
  TIDINGS_BEHIND_PROXY: 'true',
  PATH: process.env.PATH,
  TIDINGS_DATABASE_URL: url.href,
  TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
  TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8',
  TIDINGS_HOME: '/nonexistent',
  TIDINGS_LOG_LEVEL: 'warn',
}
const start = (release: string, args: string[], env: Record<string, string> = {}): ChildProcess =>
  spawn(process.execPath, ['--disable-warning=ExperimentalWarning', path.join(release, 'bin/tidings.js'), ...args], {
    env: { ...environment, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
const run = async (release: string, args: string[]): Promise<string> => {
  const child = start(release, args)
  const [out, [code]] = await Promise.all([text(child.stdout!), once(child, 'close')])
  assert.equal(code, 0, `${args.join(' ')} ended with ${code}`)
  return out
}

type Server = { base: string; release: string; process: ChildProcess }
const startServer = async (release: string): Promise<Server> => {
  const port = await freePort()
  const child = start(release, ['server', 'start'], { TIDINGS_PORT: String(port) })
  const base = `http://127.0.0.1:${port}`
  const ready = async () => (await fetch(`${base}/readyz`)).status
  await eventually(`${base} to be ready`, ready, status => status === 200, { timeoutMs: 60_000 })
  return { base, release, process: child }
}

const count = { made: 0, retried: 0, lost: 0, replays: 0, letInTwice: 0, slowestMs: 0 }
/** What requests are sent to, in turn. */
const serving: Server[] = []
let isOver = false

const graphql = async (base: string, by: Credentials, query: string, variables: object, idempotencyKey?: string) => {
  const body = JSON.stringify({ query, variables })
  const given = {
    method: 'POST',
    url: PUBLIC,
    body,
    credentials: by,
    at: new Date(),
    nonce: randomUUID(),
    idempotencyKey,
  }
  const headers = { ...signRequest(given), 'content-type': 'application/json' }
  const send = async (to: string) => {
    const response = await fetch(new URL('/graphql', to), { method: 'POST', body, headers })
    return {
      status: response.status,
      ...((await response.json()) as { data?: unknown; errors?: { extensions: object }[] }),
    }
  }
  return { send, answer: await send(base) }
}

const SUBMITTED = 'project_report_quarterly_submitted'
const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

/** Sends one change until it is acknowledged. */
const change = async (by: Credentials, variables: object, n: number): Promise<void> => {
  const key = randomUUID()
  for (let tries = 1; tries <= 30; tries += 1) {
    const to = serving[(n + tries) % serving.length]!
    try {
      const sentAt = performance.now()
      const { send, answer } = await graphql(to.base, by, SUBMIT, variables, n % 2 === 0 ? key : undefined)
      count.slowestMs = Math.max(count.slowestMs, Math.round(performance.now() - sentAt))
      if (answer.status === 200 && !answer.errors) {
        count.made += 1
        if (n % REPLAY_EACH === 0) await replay(send)
        return
      }
      if (answer.status !== 503) throw new Error(JSON.stringify(answer))
    } catch (error) {
      if (!(error instanceof TypeError)) throw error
      // Without a key it is unknown whether it was made before the connection broke.
      if (n % 2 === 1) {
        count.lost += 1
        return
      }
    }
    count.retried += 1
    await sleep(100)
  }
  count.lost += 1
}

/** The very same request again, to all servers that there are. */
const replay = async (send: (to: string) => Promise<{ status: number }>): Promise<void> => {
  for (const { base } of [...serving]) {
    const { status } = await send(base).catch(() => ({ status: 401 }))
    count.replays += 1
    if (status === 200) count.letInTwice += 1
  }
}

/** The ids of the events that a client has pulled. */
const pulled: string[] = []

/** A client that pulls from a server of this release. */
const pullFrom = (base: string, by: Credentials, webhookId: string): Pulling =>
  startPulling({
    async ask(query, variables) {
      const { answer } = await graphql(base, by, query, variables)
      const [error] = answer.errors ?? []
      if (error) throw Object.assign(new Error(JSON.stringify(error)), error.extensions)
      return answer.data
    },
    webhookId,
    concurrency: 20,
    async answer({ body }) {
      const { eventId, eventType } = JSON.parse(body)
      if (eventType === SUBMITTED) pulled.push(eventId)
      return { status: 200, headers: {}, body: '' }
    },
    onError: () => {},
  })

const receiver = await startReceiver()
let pulling: Pulling | undefined
try {
  await run(previous, ['server', 'migrate'])
  const token = JSON.parse(
    await run(previous, ['server', 'token', '--name', 'load', '--permissions', 'admin', '-o', 'json']),
  )
  const by = { apiKey: token.apiKey, apiSecret: token.secret }
  const database = await connect(url.href)
  const times = { created_at: 1, updated_at: 1 }
  const [organisation, user] = [randomUUID(), randomUUID()]
  await database.knex('organisations').insert({ id: organisation, name: 'O', ...times })
  await database.knex('users').insert({ id: user, name: 'U', ...times })
  const projects = Array.from({ length: PROJECTS }, () => ({
    id: randomUUID(),
    organisation_id: organisation,
    name: 'P',
    ...times,
  }))
  await database.knex.batchInsert('projects', projects, 200)

  serving.push(await startServer(previous), await startServer(previous))
  const registered = await graphql(
    serving[0]!.base,
    by,
    'mutation ($url: String!) { createWebhook(url: $url) { id } }',
    {
      url: receiver.url,
    },
  )
  assert.equal(registered.answer.errors, undefined, JSON.stringify(registered.answer))

  let n = 0
  const senders = Array.from({ length: SENDERS }, async () => {
    while (!isOver) {
      n += 1
      const quarter = `${2000 + Math.floor(n / PROJECTS)}-1`
      await change(by, { projectId: projects[n % PROJECTS]!.id, quarter, submitterId: user }, n)
    }
  })
  const all = Promise.all(senders)
  await sleep(PHASE_MS)
  const migratedAt = performance.now()
  const { migrated } = JSON.parse(await run(present, ['server', 'migrate', '-o', 'json'])) as { migrated: string[] }
  console.log(`migrated in ${Math.round(performance.now() - migratedAt)} ms under load: ${migrated.join(', ')}`)
  await sleep(PHASE_MS)
  for (const old of [...serving]) {
    const beside = await startServer(present)
    serving.push(beside)
    if (!pulling) {
      const webhookId = randomUUID()
      pulling = pullFrom(beside.base, by, webhookId)
      pulling.ended.catch(error => console.error(error))
      const create = 'mutation ($id: UUID!) { upsertWebhook(id: $id, transport: pull) { id } }'
      const made = await graphql(beside.base, by, create, { id: webhookId })
      assert.equal(made.answer.errors, undefined, JSON.stringify(made.answer))
    }
    await sleep(PHASE_MS)
    serving.splice(serving.indexOf(old), 1)
    // Its requests are answered by then, as behind a proxy that removes it.
    await sleep(1_000)
    old.process.kill('SIGTERM')
    await once(old.process, 'exit')
  }
  await sleep(PHASE_MS)
  isOver = true
  await all

  const pending = async () =>
    Number(
      (await rows<{ n: number }>(database.knex, "SELECT COUNT(*) AS n FROM deliveries WHERE status = 'pending'"))[0]!.n,
    )
  await eventually('every delivery to be made', pending, left => left === 0, { timeoutMs: 60_000 })
  const [found] = await rows<{ reports: number; events: number; delivered: number }>(
    database.knex,
    `SELECT (SELECT COUNT(*) FROM project_reports WHERE status = 'submitted') AS reports,
       (SELECT COUNT(*) FROM events WHERE type = '${SUBMITTED}') AS events,
       (SELECT COUNT(*) FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id
        WHERE d.status = 'delivered' AND d.event_type = '${SUBMITTED}' AND w.transport = 'push') AS delivered`,
  )
  const toPull = await rows<{ sent: number }>(
    database.knex,
    `SELECT (SELECT COUNT(*) FROM attempts a WHERE a.delivery_id = d.id
       AND COALESCE(a.evidence, '') NOT LIKE '%"pulledBy"%') AS sent
     FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id
     WHERE d.event_type = '${SUBMITTED}' AND w.transport = 'pull'`,
  )
  await pulling?.stop()
  // The schedule makes events of its own meanwhile.
  const sent = receiver.requests.filter(({ body }) => body?.eventType === SUBMITTED).map(({ body }) => body.eventId)
  await database.close()
  const sentToPull = toPull.filter(row => Number(row.sent) > 0).length
  const ofPull = { toPull: toPull.length, pulled: pulled.length, sentToPull }
  const received = { received: sent.length, receivedTwice: sent.length - new Set(sent).size }
  const told = { ...count, ...found, ...received, ...ofPull }
  console.log(JSON.stringify(told, null, 2))
  const isWell =
    count.letInTwice === 0 &&
    count.lost === 0 &&
    Number(found!.reports) === count.made &&
    Number(found!.events) === count.made &&
    new Set(sent).size === count.made &&
    toPull.length > 0 &&
    new Set(pulled).size === toPull.length &&
    sentToPull === 0
  process.exitCode = isWell ? 0 : 1
} finally {
  isOver = true
  for (const { process: child } of serving) child.kill('SIGTERM')
  await receiver.close()
  await Promise.all(serving.map(({ process: child }) => child.exitCode ?? once(child, 'exit')))
  await admin.knex.raw('DROP DATABASE ??', [name])
  await admin.close()
}
