import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { freePort } from '../../support/ports.ts'

const program = fileURLToPath(new URL('../../../bin/tidings.js', import.meta.url))
const shiftedClock = new URL('shifted-clock.ts', import.meta.url).href

/** For a start, on a machine that has many others to do. */
const START_MS = 120_000
/** A look costs the process that starts some of the time that it has. */
const READY_EACH_MS = 50

export type Ended = { code: number | null; signal: NodeJS.Signals | null }

/** A process of Tidings, as a person starts it. */
export type Tidings = {
  pid: number
  /** Resolves when it has ended. */
  ended: Promise<Ended>
  hasEnded(): Ended | undefined
  stdout(): string
  stderr(): string
  signal(signal: NodeJS.Signals): void
}

export type Server = Tidings & {
  url: string
  isReady(): Promise<boolean>
  /** Throws, with the server's log, when it has ended or takes longer than `withinMs`. */
  untilReady(withinMs?: number): Promise<void>
}

/** @param clockAheadMs how far the process's own clock is ahead of the machine's */
export const startTidings = (args: string[], env: Record<string, string>, clockAheadMs = 0): Tidings => {
  const child: ChildProcess = spawn(process.execPath, [program, ...args], {
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      TMPDIR: process.env.TMPDIR,
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
      TIDINGS_HOME: '/nonexistent',
      ...(clockAheadMs !== 0 && {
        NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import ${shiftedClock}`,
        CLOCK_AHEAD_MS: String(clockAheadMs),
      }),
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let stdout = ''
  let stderr = ''
  child.stdout!.on('data', chunk => {
    stdout += chunk
  })
  child.stderr!.on('data', chunk => {
    stderr += chunk
  })
  let end: Ended | undefined
  const ended = once(child, 'exit').then(([code, signal]): Ended => (end = { code, signal }))
  return {
    pid: child.pid!,
    ended,
    hasEnded: () => end,
    stdout: () => stdout,
    stderr: () => stderr,
    signal: signal => void child.kill(signal),
  }
}

export const startServer = async (env: Record<string, string>, clockAheadMs = 0): Promise<Server> => {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  const started = startTidings(['server', 'start'], { TIDINGS_PORT: String(port), ...env }, clockAheadMs)
  const isReady = async (): Promise<boolean> => {
    try {
      return (await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(5_000) })).ok
    } catch {
      return false
    }
  }
  return {
    ...started,
    url,
    isReady,
    async untilReady(withinMs = START_MS) {
      const giveUpAt = Date.now() + withinMs
      while (!(await isReady())) {
        if (started.hasEnded()) throw new Error(`The server has ended: ${started.stderr()}`)
        if (Date.now() > giveUpAt)
          throw new Error(`The server was not ready within ${withinMs} ms: ${started.stderr()}`)
        await wait(READY_EACH_MS)
      }
    },
  }
}
