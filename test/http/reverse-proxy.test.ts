import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { caddyWith } from '../support/caddy.ts'
import { eventually } from '../support/eventually.ts'
import { nginxWith } from '../support/nginx.ts'
import { freePort } from '../support/ports.ts'
import { type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const deploy = (name: string): string =>
  readFileSync(fileURLToPath(new URL(`../../deploy/${name}`, import.meta.url)), 'utf8')
const missing = (program: string, flag: string): string | false =>
  spawnSync(program, [flag]).error ? `${program} is not installed` : false

describe('behind a reverse proxy', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-proxy-'))
  const stops: (() => unknown)[] = []
  after(async () => {
    for (const stop of stops.reverse()) await stop()
    rmSync(folder, { recursive: true, force: true })
  })

  /** A server whose address outside is a port of its own, with a path that the proxy takes away. */
  const startBehind = async (prefix: string): Promise<{ server: TestServer; port: number; base: string }> => {
    const port = await freePort()
    const base = `http://127.0.0.1:${port}${prefix}`
    const env = { TIDINGS_BASE_URL: base, TIDINGS_BEHIND_PROXY: 'true', TIDINGS_LOG_LEVEL: 'silent' }
    const server = await startTestServer('sqlite', { env })
    stops.push(() => server.stop())
    return { server, port, base }
  }

  const start = async (program: string, args: string[], base: string): Promise<void> => {
    const child = spawn(program, args, { stdio: 'ignore', env: { PATH: process.env.PATH, HOME: folder } })
    stops.push(async () => {
      const ended = once(child, 'exit')
      if (child.exitCode === null && child.kill()) await ended
    })
    await eventually(
      `${program} to pass requests on`,
      () => fetch(`${base}/livez`),
      ({ ok }) => ok,
    )
  }

  /** Sends a signed query to an address, with its path. */
  const ask = async (address: string, credentials: Credentials): Promise<GraphqlAnswer> => {
    const url = new URL(address)
    const body = JSON.stringify({ query: '{ viewer { name } }' })
    const signed = signRequest({ method: 'POST', url, body, credentials, at: new Date() })
    const headers = { ...signed, 'content-type': 'application/json', accept: 'application/json' }
    const response = await fetch(url, { method: 'POST', headers, body })
    return {
      status: response.status,
      headers: response.headers,
      ...((await response.json()) as object),
    } as GraphqlAnswer
  }

  const assertServed = async (server: TestServer, base: string): Promise<void> => {
    const token = await server.token({ name: 'outside' })
    const outside = await ask(`${base}/graphql`, token)
    assert.deepEqual([outside.status, outside.data], [200, { viewer: { name: 'outside' } }])
    // Signed for the address inside, and sent there: not what clients are told to use.
    const refused = await ask(`http://127.0.0.1:${server.config.port}/graphql`, token)
    assert.equal(refused.errors?.[0]?.extensions.reason, 'bad_signature')
    for (const [place, status] of [
      ['/.well-known/jwks.json', 200],
      ['/spec/webhooks.json', 200],
      ['/metrics', 404],
    ] as const) {
      assert.equal((await fetch(base + place)).status, status, place)
    }
    const page = await (await fetch(`${base}/docs`)).text()
    for (const [, link] of page.matchAll(/(?:src|href)="([^"#]+)"/g)) {
      assert.equal((await fetch(new URL(link!, `${base}/docs`))).status, 200, link)
    }
    const large = await fetch(`${base}/graphql`, { method: 'POST', body: 'x'.repeat(1_500_000) })
    assert.equal(large.status, 413)
    assert.match(await large.text(), /1048576 bytes/)
  }

  const noNginx = missing('nginx', '-v')
  for (const [file, prefix] of [
    ['nginx.conf', ''],
    ['nginx-prefix.conf', '/tidings'],
  ] as const) {
    it(`as deploy/${file} has it, signatures hold`, { skip: noNginx }, async () => {
      const { server, port, base } = await startBehind(prefix)
      const own = path.join(folder, file)
      mkdirSync(own)
      const configuration = path.join(own, 'nginx.conf')
      writeFileSync(configuration, nginxWith(deploy(file), own, port, `127.0.0.1:${server.config.port}`))
      await start('nginx', ['-c', configuration, '-p', own, '-e', path.join(own, 'errors')], base)
      await assertServed(server, base)
    })
  }

  const noCaddy = missing('caddy', 'version')
  for (const [site, prefix] of [
    ['tidings.example.com', ''],
    ['example.com', '/tidings'],
  ] as const) {
    it(`as deploy/Caddyfile has it for ${site}${prefix}, signatures hold`, { skip: noCaddy }, async () => {
      const { server, port, base } = await startBehind(prefix)
      const configuration = path.join(folder, `Caddyfile-${site}`)
      writeFileSync(configuration, caddyWith(deploy('Caddyfile'), site, port, `127.0.0.1:${server.config.port}`))
      await start('caddy', ['run', '--adapter', 'caddyfile', '--config', configuration], base)
      await assertServed(server, base)
    })
  }
})
