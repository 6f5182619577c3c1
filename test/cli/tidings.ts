import { type ChildProcess, type ChildProcessWithoutNullStreams, fork, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'
import { isAtFullSize } from '../support/size.ts'
import type { Line } from './host.ts'

export const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

export interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

/** A folder that is gone when the test file has ended. */
export const temporaryFolder = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-cli-'))
  after(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

type Given = { home: string; env?: Record<string, string> }

const environment = ({ home, env = {} }: Given): Record<string, string> => {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(TIDINGS_|NO_COLOR|FORCE_COLOR|NODE_TEST)/.test(name),
  )
  return { ...(Object.fromEntries(inherited) as Record<string, string>), XDG_CONFIG_HOME: home, ...env }
}

/**
 * The command line as a process of its own, whose home is `home`; none of the caller's own TIDINGS_… settings reach it.
 */
export const startTidings = (args: string[], { stdout, ...given }: Given & { stdout?: number }) =>
  spawn(process.execPath, [PROGRAM, ...args], {
    env: environment(given),
    stdio: ['pipe', stdout ?? 'pipe', 'pipe'],
  }) as ChildProcessWithoutNullStreams

/**
 * The command line with these arguments, until it has ended. One whose first word (at full size: whose command) has run
 * as a process of its own runs in a process that is there already: most of a start is the loading of the same code.
 */
export const tidings = (args: string[], given: Given & { stdin?: string }): Promise<Ended> =>
  mayBeHosted(args, given) ? hosted({ args, env: environment(given) }) : alone(args, given)

const alone = async (args: string[], { stdin = '', ...given }: Given & { stdin?: string }): Promise<Ended> => {
  const child = startTidings(args, given)
  // One that ends before it reads its input breaks the pipe.
  child.stdin.on('error', () => {}).end(stdin)
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const [stdout, stderr, code] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { code, stdout, stderr }
}

const tried = new Set<string>()
/**
 * Those that end their process themselves, wait for signals, read by what they were started, or print a secret, which
 * is written to the descriptor itself.
 */
const ALONE = [
  ...['complete', 'completion', 'start', 'demo', 'listen', 'mcp', 'dashboard', 'explore', 'proxy', 'watch'],
  ...['token', 'tokens', 'rotate-secret', '--signing', '--ca-file'],
]
/** What is set up once for a process, or is for the process itself. */
const SET_UP = /proxy$|^TIDINGS_CA_FILE$|^npm_|^NODE_|^PATH$/i

const mayBeHosted = (args: string[], { env = {}, stdin }: Parameters<typeof tidings>[1]): boolean => {
  const words = args.filter(word => /^[a-z-]+$/.test(word))
  const command = words.slice(0, isAtFullSize ? 2 : 1).join(' ')
  const isFirst = !tried.has(command)
  tried.add(command)
  if (isFirst || stdin) return false
  return !args.some(word => ALONE.includes(word)) && !Object.keys(env).some(name => SET_UP.test(name))
}

const idle: ChildProcess[] = []

const startHost = (): ChildProcess =>
  fork(new URL('host.ts', import.meta.url), {
    execArgv: ['--disable-warning=ExperimentalWarning'],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })

const hosted = (line: Line): Promise<Ended> => {
  const host = idle.pop() ?? startHost()
  host.ref()
  host.channel?.ref()
  const ended = Promise.withResolvers<Ended>()
  const fail = () => ended.reject(new Error(`The host of the command line has ended at: ${line.args.join(' ')}`))
  host.once('exit', fail).once('message', result => {
    host.off('exit', fail).unref()
    host.channel?.unref()
    idle.push(host)
    ended.resolve(result as Ended)
  })
  host.send(line)
  return ended.promise
}
