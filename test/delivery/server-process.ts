import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'

export type ServerProcess = {
  url: string
  pid: number
  /** Sends a signal and resolves with how the process ended. */
  end(signal: NodeJS.Signals): Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  /** What it has written to stderr. */
  log(): string
}

const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

/** A server as an operator starts it, in a process of its own, ready. */
export const startServerProcess = async (
  databaseUrl: string,
  env: Record<string, string> = {},
  args: string[] = [],
): Promise<ServerProcess> => {
  const port = env.TIDINGS_PORT ?? (await freePort())
  const healthPort = env.TIDINGS_METRICS_PORT ?? port
  const child = spawn(process.execPath, [program, 'server', 'start', ...args], {
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      TMPDIR: process.env.TMPDIR,
      TIDINGS_DATABASE_URL: databaseUrl,
      TIDINGS_MASTER_KEY: masterKey,
      TIDINGS_PORT: String(port),
      TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8',
      TIDINGS_RETRY_SCHEDULE: '0.2,0.4,0.8',
      TIDINGS_ROLES: 'api,delivery',
      TIDINGS_HOME: '/nonexistent',
      TIDINGS_LOG_LEVEL: 'warn',
      ...env,
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let stderr = ''
  child.stderr.on('data', chunk => {
    stderr += chunk
  })
  const ended = once(child, 'exit')
  const url = `http://127.0.0.1:${port}`
  const look = async () =>
    child.exitCode === null && !(await isReady(`http://127.0.0.1:${healthPort}`)) ? `not ready: ${stderr}` : 'ready'
  await eventually('the server to be ready', look, seen => seen === 'ready', { timeoutMs: 60_000 })
  if (child.exitCode !== null) throw new Error(`The server ended: ${stderr}`)
  return {
    url,
    pid: child.pid!,
    async end(signal) {
      child.kill(signal)
      const [code, by] = await ended
      return { code, signal: by }
    },
    log: () => stderr,
  }
}

/** One for all processes of a test: they share the keys in the database. */
export const masterKey = randomBytes(32).toString('base64')

const isReady = async (url: string): Promise<boolean> => {
  try {
    return (await fetch(`${url}/readyz`)).ok
  } catch {
    return false
  }
}
