// Plain JavaScript for any Node from 14 on, because this file finds or fetches the Node that the rest needs.
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const NODE_FLOOR = 24
/** The first npm that reads today's package-lock.json. */
const NPM_FLOOR = 7
const LOCK_WAIT_MS = 600000
const LOCK_POLL_MS = 200
/** Progress is reported this often, so that a slow installation does not look hung. */
const TELL_EVERY_MS = 5000

const isWindows = process.platform === 'win32'
const STOPPING = ['SIGINT', 'SIGTERM', 'SIGHUP']

const root = fileURLToPath(new URL('..', import.meta.url))
const modules = path.join(root, 'node_modules')
const STAGING = '.node_modules-staging-'
const staging = path.join(root, STAGING + process.pid)
const pinnedNode = path.join(modules, 'node', 'bin', isWindows ? 'node.exe' : 'node')
const isNewEnough = Number(process.versions.node.split('.')[0]) >= NODE_FLOOR

/**
 * Why an installation failed: a signal stopped it, or the registry was not reached.
 *
 * @typedef {Error & { stoppedBy?: NodeJS.Signals, isOffline?: boolean }} Failure
 */

/**
 * Ensures that node_modules holds what package-lock.json asks for, and returns the path of a Node that can run Tidings:
 * the running one if it is new enough, else the one from the npm package `node`. With `development` false, an
 * installation without the development dependencies suffices if the running Node is new enough. Throws an Error whose
 * message says what to do. Writes only to stderr.
 */
export const ensureInstalled = async ({ development = true } = {}) => {
  if (!isInstalled(development)) {
    const unlock = await lock()
    try {
      // Another process may have installed everything while this one waited for the lock.
      if (!isInstalled(development)) await install()
    } catch (error) {
      const { stoppedBy, isOffline, message } = /** @type {Failure} */ (error)
      if (stoppedBy) {
        unlock()
        process.kill(process.pid, stoppedBy)
      }
      if (!isOffline || !existsSync(isNewEnough ? modules : pinnedNode)) throw error
      say(`${message}\ntidings: Going on with what node_modules holds from before.`)
    } finally {
      unlock()
    }
  }
  return isNewEnough ? process.execPath : pinnedNode
}

/**
 * Whether node_modules is complete: npm writes a lock file of its content there, as its last step.
 *
 * @param {boolean} development
 */
export const isInstalled = development => {
  const wanted = packagesOf(path.join(root, 'package-lock.json'))
  const found = packagesOf(path.join(modules, '.package-lock.json'))
  if (!wanted) throw new Error(`There is no package-lock.json in ${root}.`)
  if (!found || !(isNewEnough || existsSync(pinnedNode))) return false
  return Object.entries(wanted).every(([name, { version, optional, devOptional, dev }]) => {
    if (name === '') return true
    const present = found[name]
    return present ? present.version === version : optional || devOptional || (dev && isNewEnough && !development)
  })
}

/**
 * @typedef {{ version?: string, optional?: boolean, devOptional?: boolean, dev?: boolean }} LockedPackage
 *
 * @param {string} file
 * @returns {Record<string, LockedPackage> | undefined} undefined if the file does not exist
 */
const packagesOf = file => {
  try {
    return JSON.parse(readFileSync(file, 'utf8')).packages
  } catch {
    return undefined
  }
}

/**
 * Installs beside node_modules and then swaps the folders, so that a failed or stopped installation changes nothing.
 */
const install = async () => {
  const startedAt = Date.now()
  checkNpm()
  say('Installing the dependencies (a minute at most, once) …')
  // Removes the folders of killed installations too; the caller holds the lock.
  const removeStaging = () => {
    for (const name of readdirSync(root)) {
      if (name.startsWith(STAGING)) rmSync(path.join(root, name), { recursive: true, force: true, maxRetries: 5 })
    }
  }
  removeStaging()
  mkdirSync(staging)
  const telling = setInterval(() => {
    say(`Still installing, for ${Math.round((Date.now() - startedAt) / 1000)} s${unpacked()} …`)
  }, TELL_EVERY_MS)
  try {
    writeFileSync(path.join(staging, '.gitignore'), '*\n')
    for (const file of ['package.json', 'package-lock.json', '.npmrc']) {
      if (existsSync(path.join(root, file))) copyFileSync(path.join(root, file), path.join(staging, file))
    }
    for (const workspace of JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')).workspaces || []) {
      mkdirSync(path.join(staging, workspace), { recursive: true })
      copyFileSync(path.join(root, workspace, 'package.json'), path.join(staging, workspace, 'package.json'))
    }
    await npm([
      'ci',
      '--include=dev',
      '--include=optional',
      '--prefer-offline',
      '--no-audit',
      '--no-fund',
      '--engine-strict=false',
      ...IMPATIENT,
    ])
    const staged = path.join(staging, path.relative(root, pinnedNode))
    if (!isNewEnough) {
      // If npm's scripts are switched off globally, this one is still needed: it puts the executable in its place.
      if (!existsSync(staged)) await npm(['rebuild', 'node', '--ignore-scripts=false'])
      checkRuns(staged)
    }
    if (existsSync(modules)) renameSync(modules, path.join(staging, 'replaced'))
    renameSync(path.join(staging, 'node_modules'), modules)
  } finally {
    clearInterval(telling)
    removeStaging()
  }
  say(`Installed in ${((Date.now() - startedAt) / 1000).toFixed(1)} s.`)
}

/** The progress, as far as npm's folder shows it. */
const unpacked = () => {
  try {
    const folders = readdirSync(path.join(staging, 'node_modules')).filter(name => !name.startsWith('.'))
    return folders.length === 0 ? '' : `; ${folders.length} of its folders are there`
  } catch {
    return ''
  }
}

/** Adds the npm of the running Node if the path has none. */
const npmEnvironment = () => {
  /** @type {NodeJS.ProcessEnv} */
  const env = { ...process.env, PATH: `${process.env.PATH || ''}${path.delimiter}${path.dirname(process.execPath)}` }
  delete env.npm_config_global
  return env
}

const checkNpm = () => {
  const { stdout } = spawnSync('npm', ['--version'], { env: npmEnvironment(), shell: isWindows, encoding: 'utf8' })
  if (!stdout) throw new Error(`The dependencies could not be installed: there is no npm on the path. ${GET_NODE}`)
  if (parseInt(stdout, 10) >= NPM_FLOOR) return
  throw new Error(`The dependencies could not be installed: npm ${stdout.trim()} is too old. ${GET_NODE}`)
}

/**
 * @param {string[]} args
 * @returns {Promise<void>}
 */
const npm = args =>
  new Promise((resolve, reject) => {
    // A process group of its own, so that a signal can end npm together with what it has started.
    const child = spawn('npm', [...args, '--loglevel=error'], {
      cwd: staging,
      env: npmEnvironment(),
      detached: !isWindows,
      shell: isWindows,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    /** @type {NodeJS.Signals | undefined} */
    let stoppedBy
    const stop = (/** @type {NodeJS.Signals} */ signal) => {
      stoppedBy = signal
      if (child.pid) process.kill(isWindows ? child.pid : -child.pid, 'SIGKILL')
    }
    for (const signal of STOPPING) process.on(signal, stop)
    let complaint = ''
    child.stderr.setEncoding('utf8').on('data', text => {
      complaint += text
    })
    child.on('error', reject)
    child.on('close', code => {
      for (const signal of STOPPING) process.removeListener(signal, stop)
      if (code === 0) resolve()
      else reject(stoppedBy ? Object.assign(new Error('Stopped.'), { stoppedBy }) : failure(args[0] || '', complaint))
    })
  })

/** Without these, npm tries for 80 s before it reports that there is no network. */
const IMPATIENT = ['--fetch-retries=2', '--fetch-retry-mintimeout=1000', '--fetch-retry-maxtimeout=3000']

const NODE_PAGE = 'https://nodejs.org/en/download'
const GET_NODE = `Install Node ${NODE_FLOOR} or newer, which comes with npm (${NODE_PAGE}), and try again.`

const UNREACHABLE = /ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTCACHED/

/**
 * @param {string} command
 * @param {string} complaint
 */
const failure = (command, complaint) => {
  const isOffline = UNREACHABLE.test(complaint)
  const reason = isOffline
    ? 'the npm registry was not reached, and its cache on this machine lacks some of them. Connect to the network, ' +
      'or name a registry that you reach (npm config set registry URL), and try again.'
    : `npm ${command} failed:`
  const lines = complaint.trim().split('\n').slice(0, 12).join('\n  ')
  return Object.assign(new Error(`The dependencies could not be installed: ${reason}\n  ${lines}`), { isOffline })
}

/** @param {string} executable */
const checkRuns = executable => {
  const { stdout, error, stderr } = spawnSync(executable, ['--version'], { encoding: 'utf8' })
  if (!error && Number((stdout.match(/^v(\d+)/) || [])[1]) >= NODE_FLOOR) return
  const reason = error ? error.message : stderr.trim().split('\n')[0]
  throw new Error(`Tidings needs Node ${NODE_FLOOR}, and the one from npm does not run here (${reason}). ${GET_NODE}`)
}

/** Takes the lock for one installation at a time in this folder. Returns the function that releases it. */
const lock = async () => {
  const file = path.join(
    os.tmpdir(),
    `tidings-install-${createHash('sha256').update(root).digest('hex').slice(0, 16)}.lock`,
  )
  const giveUpAt = Date.now() + LOCK_WAIT_MS
  let isTold = false
  while (!tryLock(file)) {
    if (Date.now() > giveUpAt)
      throw new Error(`Another installation has held ${file} for too long. Remove that file and try again.`)
    if (!isTold) say('Waiting for another installation in this folder …')
    isTold = true
    await new Promise(resolve => setTimeout(resolve, LOCK_POLL_MS))
  }
  const unlock = () => rmSync(file, { force: true })
  process.once('exit', unlock)
  return () => {
    process.removeListener('exit', unlock)
    unlock()
  }
}

/** @param {string} file */
const tryLock = file => {
  if (create(file)) return true
  if (isHeld(file)) return false
  // The lock's holder died. Only one process may remove the lock, or a second would remove that of the first.
  const guard = `${file}.clearing`
  if (!create(guard)) return false
  try {
    if (!isHeld(file)) rmSync(file, { force: true })
  } finally {
    unlinkSync(guard)
  }
  return false
}

/** @param {string} file */
const create = file => {
  try {
    writeFileSync(file, String(process.pid), { flag: 'wx' })
    return true
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false
    throw error
  }
}

/** @param {string} file */
const isHeld = file => {
  try {
    process.kill(Number(readFileSync(file, 'utf8')), 0)
    return true
  } catch (error) {
    return codeOf(error) !== 'ESRCH'
  }
}

/** @param {unknown} error */
const codeOf = error => /** @type {NodeJS.ErrnoException} */ (error).code

/** @param {string} text */
const say = text => process.stderr.write(`tidings: ${text}\n`)

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  ensureInstalled().catch(error => {
    say(error.message)
    process.exitCode = 1
  })
}
