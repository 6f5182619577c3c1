import { spawnSync } from 'node:child_process'
import { accessSync, constants } from 'node:fs'
import path from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'

const APT_PACKAGE = 'mariadb-server-core'
const ELSEWHERE = ['/usr/sbin', '/usr/local/sbin', '/usr/local/mysql/bin', '/opt/homebrew/bin', '/usr/libexec']
const LOCK_WAIT_MS = 300_000
const LOCK_POLL_MS = 1000

/** What to do if the tests find no database server. */
export const ADVICE = `Tests run on SQLite and on a server of the MySQL family. Any one of these serves:
  - install a server for the tests to start on their own:
    apt-get install ${APT_PACKAGE} (Debian, Ubuntu), brew install mariadb (macOS)
  - name running ones, where they may create databases:
    TIDINGS_TEST_DATABASE_URLS=mysql://root@127.0.0.1:3306 npm test
  - go without, on SQLite alone: TIDINGS_TEST_ENGINES=sqlite npm test`

/** No server is on this machine, and none could be installed. */
export class NoServerError extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(`${reason}\n${ADVICE}`)
    this.reason = reason
  }
}

/** The path of a `mariadbd` or `mysqld` on this machine, if it has one. */
export const findServer = () => {
  const folders = [...(process.env.PATH ?? '').split(path.delimiter), ...ELSEWHERE]
  const candidates = ['mariadbd', 'mysqld'].flatMap(name => folders.map(folder => path.join(folder, name)))
  return candidates.find(file => {
    try {
      accessSync(file, constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}

/**
 * Installs a server, and returns its path. Waits up to five minutes for another running package manager; `stopping`
 * ends that wait with an AbortError. Throws an Error that says what to do.
 *
 * @param {AbortSignal} [stopping]
 * @returns {Promise<string>}
 */
export const installServer = async stopping => {
  if (process.getuid?.() !== 0 || spawnSync('apt-get', ['--version']).status !== 0) {
    throw new NoServerError('No mariadbd or mysqld was found on this machine.')
  }
  console.error(`tidings: No database server was found; installing ${APT_PACKAGE} …`)
  const updating = await aptGet(['update', '-qq'], stopping)
  const installing = await aptGet(['install', '-y', '-qq', '--no-install-recommends', APT_PACKAGE], stopping)
  const program = findServer()
  if (program) return program
  const complaint = (installing || updating).trim().split('\n').slice(-10).join('\n  ')
  throw new NoServerError(`apt-get could not install ${APT_PACKAGE}:\n  ${complaint}`)
}

/**
 * Runs apt-get, again and again while another package manager holds a lock, and returns its error output.
 *
 * @param {string[]} args
 * @param {AbortSignal} [stopping]
 */
const aptGet = async (args, stopping) => {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C' }
  const giveUpAt = Date.now() + LOCK_WAIT_MS
  for (let isTold = false; ; isTold = true) {
    const { stderr } = spawnSync('apt-get', [...(isTold ? IN_LINE : []), ...args], { env, encoding: 'utf8' })
    const [held] = /Could not get lock .*/.exec(stderr) ?? []
    if (!held || Date.now() > giveUpAt) return stderr
    if (!isTold) console.error(`tidings: Waiting for another package manager, at most 5 minutes: ${held}`)
    await wait(LOCK_POLL_MS, undefined, { signal: stopping })
  }
}

/**
 * Makes apt-get wait 5 s for dpkg's lock, briefly so that a stop is noticed. That alone is not enough: apt-get does not
 * wait for the lock of the package lists, which `update` takes.
 */
const IN_LINE = ['-o', 'DPkg::Lock::Timeout=5']
