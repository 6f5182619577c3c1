import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { caddyWith } from '../support/caddy.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { nginxWith } from '../support/nginx.ts'
import { freePort } from '../support/ports.ts'
import { sendGraphql } from '../support/server.ts'

const deploy = (name: string): string =>
  readFileSync(fileURLToPath(new URL(`../../deploy/${name}`, import.meta.url)), 'utf8')

type Proxy = {
  name: string
  file: string
  version: string
  /** What it is started with, having written its configuration into a folder: in front of two servers' ports. */
  configure(folder: string, port: number, first: string, second: string): string[]
}

const proxies: Proxy[] = [
  {
    name: 'nginx',
    file: 'nginx.conf',
    version: '-v',
    configure(folder, port, first, second) {
      const site = deploy(this.file)
      const both = site.replace('# server 127.0.0.1:4101', `server 127.0.0.1:${second}`)
      assert.notEqual(both, site)
      const configuration = path.join(folder, this.file)
      writeFileSync(configuration, nginxWith(both, folder, port, `127.0.0.1:${first}`))
      return ['-c', configuration, '-p', folder, '-e', path.join(folder, 'errors')]
    },
  },
  {
    name: 'caddy',
    file: 'Caddyfile',
    version: 'version',
    configure(folder, port, first, second) {
      const configuration = path.join(folder, this.file)
      const upstreams = `127.0.0.1:${first} 127.0.0.1:${second}`
      writeFileSync(configuration, caddyWith(deploy(this.file), 'tidings.example.com', port, upstreams))
      return ['run', '--adapter', 'caddyfile', '--config', configuration]
    },
  },
]

/** Up to 2.11.1 Caddy has a request's body for one server only. */
const OLDEST_CADDY = [2, 11, 2]

const missing = ({ name, version }: Proxy): string | false => {
  const { error, stdout } = spawnSync(name, [version], { encoding: 'utf8' })
  if (error) return `${name} is not installed`
  if (name !== 'caddy') return false
  const found = /(\d+)\.(\d+)\.(\d+)/.exec(stdout)!.slice(1).map(Number)
  const differing = found.findIndex((part, n) => part !== OLDEST_CADDY[n])
  const isNewEnough = differing < 0 || found[differing]! > OLDEST_CADDY[differing]!
  return isNewEnough ? false : `caddy ${found.join('.')} is older than ${OLDEST_CADDY.join('.')}`
}

const CLIENTS = 8

for (const proxy of proxies) {
  describe(`two servers behind ${proxy.name}, as deploy/${proxy.file} has it`, { skip: missing(proxy) }, () => {
    for (const engine of engines.filter(name => name !== 'sqlite')) {
      it(`are restarted one after the other, and no request is lost (${engine})`, () => restartBehind(proxy, engine))
    }
  })
}

const restartBehind = async (proxy: Proxy, engine: string): Promise<void> => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-rolling-'))
  const stops: (() => unknown)[] = [() => rmSync(folder, { recursive: true, force: true })]
  try {
    const given = await migratedDatabase(engine)
    stops.push(() => given.drop())
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    const token = await given.database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'rolling', permissions: ['admin'] }, Date.now()),
    )
    const port = await freePort()
    const base = `http://127.0.0.1:${port}`
    const places = await Promise.all(
      [0, 1].map(async () => ({
        TIDINGS_PORT: String(await freePort()),
        TIDINGS_METRICS_PORT: String(await freePort()),
      })),
    )
    const env = { TIDINGS_BASE_URL: base, TIDINGS_BEHIND_PROXY: 'true', TIDINGS_RATE_LIMIT: '0' }
    const start = (n: number): Promise<ServerProcess> => startServerProcess(given.url, { ...env, ...places[n] })
    const servers = [await start(0), await start(1)]
    stops.push(() => Promise.all(servers.map(server => server.end('SIGKILL'))))

    const args = proxy.configure(folder, port, places[0]!.TIDINGS_PORT, places[1]!.TIDINGS_PORT)
    const running = spawn(proxy.name, args, { stdio: 'ignore', env: { PATH: process.env.PATH, HOME: folder } })
    stops.push(async () => {
      const ended = once(running, 'exit')
      if (running.exitCode === null && running.kill()) await ended
    })
    await eventually(
      `${proxy.name} to pass requests on`,
      () => fetch(`${base}/.well-known/jwks.json`),
      ({ ok }) => ok,
    )

    let isOver = false
    let answered = 0
    const lost: string[] = []
    const client = async (n: number): Promise<void> => {
      for (let request = 0; !isOver; request++) {
        // A change and a question by turns: neither may be lost, and a change may not be made twice.
        const document = request % 2 ? '{ viewer { id } }' : `mutation { upsertUser(name: "${n}-${request}") { id } }`
        try {
          const { status, errors } = await sendGraphql(base, token, document)
          if (status === 200 && !errors) answered += 1
          else lost.push(`${status} ${JSON.stringify(errors)}`)
        } catch (error) {
          lost.push(String(error))
        }
      }
    }
    const clients = Array.from({ length: CLIENTS }, (_, n) => client(n))
    const restart = async (n: number): Promise<void> => {
      await servers[n]!.end('SIGTERM')
      servers[n] = await start(n)
      const before = answered
      await eventually(
        'some more answers',
        () => answered - before,
        count => count > 50,
        { timeoutMs: 60_000 },
      )
    }
    for (const n of [0, 1, 0]) await restart(n)
    isOver = true
    await Promise.all(clients)
    assert.deepEqual(lost, [])
    const names: string[] = await given.database.knex('users').pluck('name')
    assert.equal(new Set(names).size, names.length, 'no change was made twice')
    assert.ok(answered > 150, `${answered} requests were answered`)
  } finally {
    for (const stop of stops.reverse()) await stop()
  }
}
