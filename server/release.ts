import { spawn } from 'node:child_process'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { root } from '../shared/root.ts'
import { toIso } from '../shared/time.ts'
import type { Log } from './log.ts'

// A process that runs loads later what is on the disk then. If another release was installed into the same folder, the
// processes that it starts would be of that release, whose messages it does not know.

/** The release on the disk where this program was started: its version, and when it was installed. */
const installed = (): string => {
  try {
    const file = join(root, 'package.json')
    const { version } = JSON.parse(readFileSync(file, 'utf8'))
    return `${version}, installed at ${toIso(Math.floor(statSync(file).mtimeMs))}`
  } catch {
    return 'one that is being installed'
  }
}

/** The release of this process. */
export const release = installed()

/** Why this process should be restarted, given the release of a child or, by default, the one on the disk. */
export const otherRelease = (found = installed()): string | undefined =>
  found === release
    ? undefined
    : `another release was installed in place of this process's (${release}): ${found}. It restarts when that can run`

const LOOK_AGAIN_MS = 5_000

/** Resolves when the release on the disk would start with this process's environment, or when `stopping` is aborted. */
export const untilItMayRun = async (log: Log, stopping: AbortSignal): Promise<void> => {
  let lastReason = ''
  while (!stopping.aborted) {
    const reason = await refusal()
    if (reason === undefined || stopping.aborted) return
    if (reason !== lastReason) log.warn({ reason }, 'the release that was installed cannot start yet')
    lastReason = reason
    await sleep(LOOK_AGAIN_MS, undefined, { signal: stopping, ref: false }).catch(() => {})
  }
}

/** Why `server check` of the release on the disk refuses; undefined if it does not. */
const refusal = async (): Promise<string | undefined> => {
  const child = spawn(process.execPath, [process.argv[1]!, 'server', 'check'], { stdio: ['ignore', 'ignore', 'pipe'] })
  const { promise, resolve } = Promise.withResolvers<string | undefined>()
  let said = ''
  child.stderr.setEncoding('utf8').on('data', text => {
    said += text
  })
  child.on('error', error => resolve(error.message))
  child.on('close', code => resolve(code === 0 ? undefined : said.trim() || `it ended with ${code}`))
  return promise
}

/** Becomes the release on the disk, under the same process id. Throws if the system cannot do that. */
export const becomeInstalled = (): never =>
  process.execve!(process.execPath, [process.execPath, ...process.execArgv, ...process.argv.slice(1)], process.env)
