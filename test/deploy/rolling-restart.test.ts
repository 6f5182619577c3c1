import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it } from 'node:test'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { missing, type ProxyServer, proxies, startProxy } from '../support/proxies.ts'
import { sendGraphql } from '../support/server.ts'
import { unlessFullSize } from '../support/size.ts'

const CLIENTS = 8
const TRIES = 3

for (const proxy of proxies) {
  describe(`two servers behind ${proxy.name}, as deploy/${proxy.file} has it`, {
    skip: missing(proxy) || unlessFullSize,
  }, () => {
    for (const engine of engines.filter(name => name !== 'sqlite')) {
      it(`are restarted one after the other, and no request is lost (${engine})`, async () => {
        let lost = await restartBehind(proxy, engine)
        // A close resets what arrives in its last millisecond, in which a machine that has much else to do may pause.
        for (let n = 1; lost !== '' && n < TRIES; n++) lost = await restartBehind(proxy, engine)
        assert.equal(lost, '')
      })
    }
  })
}

/** Returns what was lost, with what the proxy says of it. */
const restartBehind = async (proxy: ProxyServer, engine: string): Promise<string> => {
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

    stops.push(await startProxy(proxy, folder, port, places[0]!.TIDINGS_PORT, places[1]!.TIDINGS_PORT))

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
    const names: string[] = await given.database.knex('users').pluck('name')
    assert.equal(new Set(names).size, names.length, 'no change was made twice')
    assert.ok(answered > 150, `${answered} requests were answered`)
    if (lost.length === 0) return ''
    const errors = path.join(folder, 'errors')
    return `${lost.join('\n')}\n${existsSync(errors) ? readFileSync(errors, 'utf8') : ''}`
  } finally {
    for (const stop of stops.reverse()) await stop()
  }
}
