import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { caddyWith } from './caddy.ts'
import { eventually } from './eventually.ts'
import { nginxWith } from './nginx.ts'

// Proxies in front of servers, with the configurations of `deploy/`.

const deploy = (name: string): string =>
  readFileSync(fileURLToPath(new URL(`../../deploy/${name}`, import.meta.url)), 'utf8')

export type ProxyServer = {
  name: string
  file: string
  version: string
  /** What it is started with, having written its configuration into a folder: in front of the servers' ports. */
  configure(folder: string, port: number, first: string, second?: string): string[]
}

export const proxies: ProxyServer[] = [
  {
    name: 'nginx',
    file: 'nginx.conf',
    version: '-v',
    configure(folder, port, first, second) {
      const site = deploy(this.file)
      const both = site.replace('# server 127.0.0.1:4101', `server 127.0.0.1:${second}`)
      assert.notEqual(both, site)
      const configuration = path.join(folder, this.file)
      writeFileSync(configuration, nginxWith(second ? both : site, folder, port, `127.0.0.1:${first}`))
      return ['-c', configuration, '-p', folder, '-e', path.join(folder, 'errors')]
    },
  },
  {
    name: 'caddy',
    file: 'Caddyfile',
    version: 'version',
    configure(folder, port, first, second) {
      const configuration = path.join(folder, this.file)
      const upstreams = [first, ...(second ? [second] : [])].map(port => `127.0.0.1:${port}`).join(' ')
      writeFileSync(configuration, caddyWith(deploy(this.file), 'tidings.example.com', port, upstreams))
      return ['run', '--adapter', 'caddyfile', '--config', configuration]
    },
  },
]

/** Up to 2.11.1 Caddy has a request's body for one server only. */
const OLDEST_CADDY = [2, 11, 2]

/** Why a proxy cannot be started here, or false. */
export const missing = ({ name, version }: ProxyServer): string | false => {
  const { error, stdout } = spawnSync(name, [version], { encoding: 'utf8' })
  if (error) return `${name} is not installed`
  if (name !== 'caddy') return false
  // One that was built from its source without a tag does not know its own version.
  const found = /(\d+)\.(\d+)\.(\d+)/.exec(stdout)?.slice(1).map(Number)
  if (!found) return false
  const differing = found.findIndex((part, n) => part !== OLDEST_CADDY[n])
  const isNewEnough = differing < 0 || found[differing]! > OLDEST_CADDY[differing]!
  return isNewEnough ? false : `caddy ${found.join('.')} is older than ${OLDEST_CADDY.join('.')}`
}

/** Starts a proxy; resolves to what ends it when it passes requests on. */
export const startProxy = async (
  proxy: ProxyServer,
  folder: string,
  port: number,
  ...servers: [string, string?]
): Promise<() => Promise<void>> => {
  const args = proxy.configure(folder, port, ...servers)
  const running = spawn(proxy.name, args, { stdio: 'ignore', env: { PATH: process.env.PATH, HOME: folder } })
  const stop = async () => {
    const ended = once(running, 'exit')
    if (running.exitCode === null && running.kill()) await ended
  }
  await eventually(
    `${proxy.name} to pass requests on`,
    () => fetch(`http://127.0.0.1:${port}/.well-known/jwks.json`),
    ({ ok }) => ok,
  ).catch(async error => {
    await stop()
    throw error
  })
  return stop
}
