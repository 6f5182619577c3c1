import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'

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

/**
 * The command line as a process of its own, whose home is `home`; none of the caller's own TIDINGS_… settings reach it.
 */
export const startTidings = (
  args: string[],
  { home, env = {}, stdout }: { home: string; env?: Record<string, string>; stdout?: number },
) => {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(TIDINGS_|NO_COLOR|FORCE_COLOR|NODE_TEST)/.test(name),
  )
  return spawn(process.execPath, [PROGRAM, ...args], {
    env: { ...Object.fromEntries(inherited), XDG_CONFIG_HOME: home, ...env },
    stdio: ['pipe', stdout ?? 'pipe', 'pipe'],
  }) as ChildProcessWithoutNullStreams
}

export const tidings = async (
  args: string[],
  { stdin = '', ...given }: { home: string; env?: Record<string, string>; stdin?: string },
): Promise<Ended> => {
  const child = startTidings(args, given)
  child.stdin.end(stdin)
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const [stdout, stderr, code] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { code, stdout, stderr }
}
