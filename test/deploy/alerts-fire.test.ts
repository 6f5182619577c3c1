import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import { fileURLToPath } from 'node:url'
import { findServer } from '../../scripts/database-server.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { connect } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { type Credentials, createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { startProxy } from '../chaos/proxy.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, sendGraphql } from '../support/server.ts'
import { unlessFullSize } from '../support/size.ts'
import { addWebhooks } from '../support/webhooks.ts'

// Three servers, a Prometheus with the rules of deploy/, whose minutes are seconds, and real faults: each makes its
// alert fire, and when it is over the alert resolves.

const deploy = fileURLToPath(new URL('../../deploy/', import.meta.url))
const shiftedClock = new URL('../chaos/stage/shifted-clock.ts', import.meta.url).href
const DAY_MS = 24 * 3_600_000
const FIRES_WITHIN_MS = 120_000
const RESOLVES_WITHIN_MS = 240_000
const SUBMIT = `mutation ($p: UUID!, $q: String!, $u: UUID!) {
  submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`
const missing = ['prometheus', 'openssl'].find(program => spawnSync(program, ['version']).error)
const program = findServer()

/** A rule's times by another clock: a minute is 4 s, a wait at most 4 s, and a range from 20 s to a minute. */
const hurried = (rules: string): string =>
  rules.replaceAll(/(for: |\[)(\d+)([mhd])/g, (_, before: string, count: string, unit: 'm' | 'h' | 'd') => {
    const seconds = Number(count) * { m: 4, h: 60, d: 60 }[unit]
    return `${before}${before === '[' ? Math.min(60, Math.max(20, seconds)) : Math.min(4, seconds)}s`
  })

type Fault = {
  name: string
  alerts: string[]
  /** What the log of a server says. */
  log?: RegExp
  /** Returns how it ends. */
  begin(): Promise<() => unknown>
}

const startPrometheus = async (t: TestContext, folder: string, ports: number[], probePort: number) => {
  writeFileSync(path.join(folder, 'alerts.yaml'), hurried(readFileSync(path.join(deploy, 'alerts.yaml'), 'utf8')))
  const settings = readFileSync(path.join(deploy, 'prometheus.yml'), 'utf8')
    .replace("['127.0.0.1:9400']", JSON.stringify(ports.map(port => `127.0.0.1:${port}`)))
    .replaceAll('30s', '1s')
  const probes = `  - job_name: tidings-https\n    static_configs:\n      - targets: ['127.0.0.1:${probePort}']\n`
  writeFileSync(path.join(folder, 'prometheus.yml'), settings + probes)
  const port = await freePort()
  const args = ['--config.file=prometheus.yml', '--storage.tsdb.path=data', `--web.listen-address=127.0.0.1:${port}`]
  const prometheus = spawn('prometheus', args, { cwd: folder, stdio: 'ignore' })
  t.after(async () => {
    const ended = once(prometheus, 'exit')
    if (prometheus.exitCode === null && prometheus.kill('SIGKILL')) await ended
  })
  return async (): Promise<Set<string>> => {
    type Alerts = { data: { alerts: { state: string; labels: { alertname: string } }[] } }
    const answer = await fetch(`http://127.0.0.1:${port}/api/v1/alerts`).catch(() => undefined)
    const { data } = answer?.ok ? ((await answer.json()) as Alerts) : { data: { alerts: [] } }
    return new Set(data.alerts.filter(({ state }) => state === 'firing').map(({ labels }) => labels.alertname))
  }
}

/** An endpoint with a certificate, and an exporter that reports when it ends, as blackbox_exporter does. */
const startProbe = async (t: TestContext, folder: string) => {
  const certificate = (days: number) => {
    const [key, cert] = [path.join(folder, 'key.pem'), path.join(folder, 'cert.pem')]
    const args = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=localhost', '-days', String(days)]
    assert.equal(spawnSync('openssl', [...args, '-keyout', key, '-out', cert]).status, 0)
    return { key: readFileSync(key), cert: readFileSync(cert) }
  }
  const site = createHttpsServer(certificate(90))
  const exporter = createServer((_request, response) => {
    const { port } = site.address() as AddressInfo
    const socket = connectTls({ host: '127.0.0.1', port, rejectUnauthorized: false }, () => {
      const ends = Date.parse(socket.getPeerCertificate().valid_to) / 1000
      socket.destroy()
      response.setHeader('content-type', 'text/plain; version=0.0.4')
      response.end(`# TYPE probe_ssl_earliest_cert_expiry gauge\nprobe_ssl_earliest_cert_expiry ${ends}\n`)
    })
  })
  const listen = async (server: Server | typeof site): Promise<number> => {
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    t.after(() => void server.close())
    return (server.address() as AddressInfo).port
  }
  await listen(site)
  return { port: await listen(exporter), renew: (days: number) => site.setSecureContext(certificate(days)) }
}

const smallDisk = (t: TestContext): string | undefined => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-disk-'))
  const size = /mysqld/.test(program!) ? 600 : 260
  const isMounted = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${size}m`, 'tidings', folder]).status === 0
  t.after(() => {
    if (isMounted) spawnSync('umount', ['--lazy', folder])
    rmSync(folder, { recursive: true, force: true })
  })
  return isMounted ? folder : undefined
}

/** Three servers at one database, with their load. */
const startInstallation = async (t: TestContext, folder: string | undefined) => {
  const { TMPDIR } = process.env
  if (folder) process.env.TMPDIR = folder
  const settings = ['--innodb-file-per-table=1', '--loose-innodb-log-file-size=8M']
  const instance = await startThrowAwayDatabase(program, { settings })
  t.after(instance.stop)
  if (TMPDIR === undefined) delete process.env.TMPDIR
  else process.env.TMPDIR = TMPDIR
  const root = await connect(instance.url, { poolSize: 1 })
  await root.knex.raw('CREATE DATABASE tidings CHARACTER SET utf8mb4')
  // One that read-only mode binds, unlike root.
  await root.knex.raw("CREATE USER tidings@'%'")
  await root.knex.raw("GRANT ALL ON tidings.* TO tidings@'%'")
  await root.close()
  const database = await connect(`${instance.url}/tidings`, { poolSize: 8 })
  t.after(database.close)
  await migrate(database)
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const token = () =>
    database.transaction(trx => createAccessToken(trx, sealer, { name: 'ci', permissions: ['admin'] }, Date.now()))
  const proxy = await startProxy(`${instance.url.replace('root@', 'tidings@')}/tidings`)
  t.after(proxy.close)
  const places = await Promise.all(
    Array.from({ length: 3 }, async () => ({ port: await freePort(), metrics: await freePort() })),
  )
  const servers: (ServerProcess | undefined)[] = []
  const logs: string[] = []
  const end = async (n: number, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> => {
    const server = servers[n]
    servers[n] = undefined
    if (!server) return
    logs.push(server.log())
    await server.end(signal)
  }
  const start = async (n: number, env: Record<string, string> = {}): Promise<void> => {
    await end(n)
    servers[n] = await startServerProcess(proxy.url, {
      TIDINGS_ROLES: 'api,delivery,scheduler',
      TIDINGS_PORT: String(places[n]!.port),
      TIDINGS_METRICS_PORT: String(places[n]!.metrics),
      TIDINGS_RATE_LIMIT: '600',
      TIDINGS_API_CONNECTIONS: '4',
      TIDINGS_LOG_LEVEL: 'info',
      ...env,
    })
  }
  t.after(async () => {
    for (const n of places.keys()) await end(n)
  })
  await Promise.all(places.keys().map(n => start(n)))
  const log = (): string => [...logs, ...servers.map(server => server?.log() ?? '')].join('')
  const url = (n: number): string => `http://127.0.0.1:${places[n]!.port}`
  return { instance, database, proxy, places, servers, start, end, token, log, url, disk: folder }
}

type Installation = Awaited<ReturnType<typeof startInstallation>>
type World = Installation & {
  admin: Credentials & { id: string }
  projectId: string
  userId: string
  submit(projectId?: string): Promise<unknown>
}

const ofTheDatabase = ({ instance, database, proxy, disk, admin, url }: World): Fault[] => [
  {
    name: 'the database is down',
    alerts: ['TidingsDatabaseAway', 'TidingsRequestsFail'],
    log: /not ready.*database does not answer|database does not answer.*not ready/,
    async begin() {
      await instance.signal('SIGKILL')
      return instance.start
    },
  },
  {
    name: 'the database is read-only',
    alerts: ['TidingsDatabaseAway'],
    log: /cannot be written/,
    async begin() {
      await database.knex.raw('SET GLOBAL read_only = ON')
      return () => database.knex.raw('SET GLOBAL read_only = OFF')
    },
  },
  ...(disk === undefined ? [] : [diskFull(disk)]),
  {
    name: 'the database is slow',
    alerts: ['TidingsDatabaseSlow'],
    async begin() {
      proxy.delay(300)
      return () => proxy.delay(0)
    },
  },
  {
    name: 'connections are exhausted',
    alerts: ['TidingsConnectionsExhausted'],
    async begin() {
      const id = randomUUID()
      await database.knex('users').insert({ id, name: 'Eve', created_at: 1, updated_at: 1 })
      const locked = await database.knex.transaction()
      await locked.raw('SELECT id FROM users WHERE id = ? FOR UPDATE', [id])
      const UPSERT = 'mutation ($id: UUID!) { upsertUser(id: $id, name: "Eve Again") { id } }'
      const flood = setInterval(() => {
        for (const n of [0, 1, 2]) sendGraphql(url(n), admin, UPSERT, { id }).catch(() => {})
      }, 500)
      return () => {
        clearInterval(flood)
        return locked.rollback()
      }
    },
  },
]

const diskFull = (disk: string): Fault => ({
  name: 'the disk of the database is full',
  alerts: ['TidingsDatabaseAway'],
  log: /its disk is full/,
  async begin() {
    const { bavail, bsize } = statfsSync(disk)
    const file = path.join(disk, 'filler')
    writeFileSync(file, Buffer.alloc(Number(bavail) * Number(bsize)))
    return () => rmSync(file)
  },
})

const ofServers = ({ servers, start, end, url, token, admin }: World): Fault[] => [
  {
    name: 'one process of three is gone',
    alerts: ['TidingsServerDown'],
    async begin() {
      await end(2)
      return () => start(2)
    },
  },
  {
    name: 'the clock of a machine is off',
    alerts: ['TidingsClockOff'],
    log: /clock is 60.* ahead of/,
    async begin() {
      const NODE_OPTIONS = `--disable-warning=ExperimentalWarning --import ${shiftedClock}`
      await start(2, { NODE_OPTIONS, CLOCK_AHEAD_MS: '60000' })
      return () => start(2)
    },
  },
  {
    name: 'processes that answer queries hang',
    alerts: ['TidingsReadersEnd'],
    async begin() {
      // They are ended when their queries take too long, and others start.
      const hang = setInterval(() => {
        for (const [n, server] of servers.entries()) {
          const { stdout } = spawnSync('pgrep', ['-P', String(server?.pid)], { encoding: 'utf8' })
          for (const pid of stdout.split('\n').filter(Boolean)) process.kill(Number(pid), 'SIGSTOP')
          for (let k = 0; k < 4; k++) sendGraphql(url(n), admin, QUERY, {}).catch(() => {})
        }
      }, 9_000)
      return () => clearInterval(hang)
    },
  },
  {
    name: 'a tenant floods',
    alerts: ['TidingsTokenLimited'],
    async begin() {
      const tenant = await token()
      const flood = setInterval(() => {
        for (let k = 0; k < 8; k++) sendGraphql(url(k % 3), tenant, '{ viewer { id } }', {}).catch(() => {})
      }, 250)
      return () => clearInterval(flood)
    },
  },
]

const QUERY = '{ organisations(query: { sort: ["name"] }) { id projects { id } } }'

const ofDeliveries = ({ database, admin, submit, projectId }: World): Fault[] => [
  {
    name: 'the purge cannot keep up',
    alerts: ['TidingsPurgeLate'],
    async begin() {
      const [id, created_at] = [randomUUID(), Date.now() - 40 * DAY_MS]
      const event = { id, type: 'ping', project_id: projectId, payload: '{}', created_at }
      const locked = await database.knex.transaction()
      await locked('events').insert(event)
      await locked.commit()
      // The purge passes over what another transaction has.
      const holding = await database.knex.transaction()
      await holding.raw('SELECT id FROM events WHERE id = ? FOR UPDATE', [id])
      const alive = setInterval(() => holding.raw('SELECT 1').catch(() => {}), 5_000)
      return () => {
        clearInterval(alive)
        return holding.rollback()
      }
    },
  },
  {
    name: 'the endpoint of a webhook is down',
    alerts: ['TidingsDeliveriesDropped'],
    begin: () => failing({ database, admin, submit }, 1, 500),
  },
  {
    name: 'the endpoints of most webhooks are down',
    alerts: ['TidingsEndpointsFail'],
    begin: () => failing({ database, admin, submit }, 12, 500),
  },
  {
    name: 'an endpoint wants nothing more',
    alerts: ['TidingsWebhookInactive'],
    begin: () => failing({ database, admin, submit }, 1, 429),
  },
]

/** Webhooks whose endpoint answers with a status. */
const failing = async (
  { database, admin, submit }: Pick<World, 'database' | 'admin' | 'submit'>,
  count: number,
  status: number,
) => {
  const receiver = await startReceiver({ answer: () => ({ status }) })
  const ids = await addWebhooks(
    database.knex,
    Array.from({ length: count }, () => ({ accessTokenId: admin.id, url: receiver.url })),
  )
  await submit()
  return async () => {
    await database.knex('webhooks').whereIn('id', ids).update({ status: 'disabled', status_reason: null })
    await receiver.close()
  }
}

/** No process delivers or schedules, and so many webhooks have had something due for a day. */
const late = ({ database, admin, submit, start }: World, count: number, alerts: string[]): Fault => ({
  name: `the queue is a day late for ${count}, and no process delivers`,
  alerts: [...alerts, 'TidingsDeliveryMissing', 'TidingsSchedulerMissing'],
  async begin() {
    const receiver = await startReceiver()
    await Promise.all([0, 1, 2].map(n => start(n, { TIDINGS_ROLES: 'api' })))
    await database.knex('webhooks').update({ status: 'disabled' })
    // What is submitted meanwhile is of another project.
    const { projectId } = await addProject(database)
    const projectIds = [projectId]
    const given = Array.from({ length: count }, () => ({ accessTokenId: admin.id, url: receiver.url, projectIds }))
    await addWebhooks(database.knex, given)
    await submit(projectId)
    await database.knex('delivery_queue').update({ due_at: Date.now() - DAY_MS })
    return async () => {
      await Promise.all([0, 1, 2].map(n => start(n)))
      await eventually(
        'the late deliveries',
        () => receiver.requests.length,
        n => n >= count,
        { timeoutMs: 120_000 },
      )
      await receiver.close()
    }
  },
})

describe('alerts of a real Prometheus', {
  skip: unlessFullSize || (missing && `${missing} is not installed`) || (!program && 'needs a database server'),
}, () => {
  it('fire for each fault that is made, and resolve when it is over', async t => {
    const folder = mkdtempSync(path.join(tmpdir(), 'tidings-alerts-'))
    t.after(() => rmSync(folder, { recursive: true, force: true }))
    const installation = await startInstallation(t, smallDisk(t))
    const { database, places, url } = installation
    const probe = await startProbe(t, folder)
    const firing = await startPrometheus(
      t,
      folder,
      places.map(({ metrics }) => metrics),
      probe.port,
    )
    const admin = await installation.token()
    const { projectId, userId } = await addProject(database)
    const steady = await startReceiver()
    t.after(steady.close)
    await addWebhooks(database.knex, [{ accessTokenId: admin.id, url: steady.url }])
    let submitted = 0
    const submit = (p = projectId) => {
      const n = submitted++
      const variables = { p, q: `${3000 + (n >> 2)}-${(n % 4) + 1}`, u: userId }
      return sendGraphql(url(n % 3), admin, SUBMIT, variables).catch(() => {})
    }
    const load = setInterval(() => void submit(), 500)
    t.after(() => clearInterval(load))
    const world: World = { ...installation, admin, projectId, userId, submit }
    const certificate: Fault = {
      name: 'a certificate is near its end',
      alerts: ['TidingsCertificateEnds'],
      async begin() {
        probe.renew(5)
        return () => probe.renew(90)
      },
    }
    const faults = [
      certificate,
      ...ofTheDatabase(world),
      ...ofServers(world),
      ...ofDeliveries(world),
      late(world, 1, ['TidingsWebhookBehind']),
      late(world, 9, ['TidingsDeliveriesLate']),
      late(world, 1_000, ['TidingsDeliveriesLate']),
    ]
    const wrong: string[] = []
    for (const { name, alerts, log, begin } of faults) {
      const at = Date.now()
      const on = async () => [...(await firing())].filter(alert => alerts.includes(alert))
      const off = async () => {
        const now = await firing()
        return alerts.filter(alert => !now.has(alert))
      }
      await untilNone(on, RESOLVES_WITHIN_MS)
      const end = await begin()
      const left = await untilNone(off, FIRES_WITHIN_MS)
      const firedS = (Date.now() - at) / 1000
      if (left.length > 0) wrong.push(`${name}: ${left} did not fire`)
      if (log && !log.test(installation.log())) wrong.push(`${name}: the log does not say it`)
      await end()
      const endedAt = Date.now()
      const kept = await untilNone(on, RESOLVES_WITHIN_MS)
      if (kept.length > 0) wrong.push(`${name}: ${kept} did not resolve`)
      const overS = (Date.now() - endedAt) / 1000
      t.diagnostic(`${name}: ${alerts} after ${firedS.toFixed(0)} s, over after ${overS.toFixed(0)} s`)
    }
    assert.deepEqual(wrong, [])
    assert.ok(faults.length >= 12)
  })
})

/** Waits until nothing is left of a list, and returns what is. */
const untilNone = async (look: () => Promise<string[]>, withinMs: number): Promise<string[]> => {
  const giveUpAt = Date.now() + withinMs
  for (;;) {
    const left = await look()
    if (left.length === 0 || Date.now() > giveUpAt) return left
    await wait(500)
  }
}
