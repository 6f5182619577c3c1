import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

/**
 * What became of a test file.
 *
 * @typedef {object} FileResult
 * @property {string} file
 * @property {number} passed
 * @property {Failure[]} failures
 * @property {{ path: string[], reason: string }[]} skipped
 * @property {number} wallS
 * @property {number} cpuS of its process and those that it has waited for; 0 where the system does not tell
 *
 * @typedef {{ file: string, title: string, place: string, detail: string }} Failure
 */

const WORKER = fileURLToPath(new URL('worker.js', import.meta.url))
const LIBRARIES = fileURLToPath(new URL('../../bin/libraries.js', import.meta.url))
const OUTPUT_SHOWN = 4000
/** A process that has grown so far runs no further file. */
const MOST_MB = 600

/** @typedef {{ child: import('node:child_process').ChildProcess, pid: number, output: string }} Worker */

/**
 * Returns what runs test files, each in a process that others have run in before, since most of what a file takes is
 * the loading of the same code. What a file leaves running ends with its process.
 *
 * @param {object} how
 * @param {string} how.root the folder that tests run in
 * @param {string} how.folder for what is needed until the end
 * @param {string[]} how.options of Node
 * @param {import('./worker.js').Only} how.only
 * @param {number} how.timeoutMs of a file
 * @param {boolean} how.isShown whether results and output are shown while a file runs
 * @param {import('../aftercare.js').Aftercare} how.care
 * @param {AbortSignal} how.stopping
 */
export const createWorkers = ({ root, folder, options, only, timeoutMs, isShown, care, stopping }) => {
  /** @type {Set<Worker>} */
  const idle = new Set()
  let count = 0

  const start = () => {
    const output = path.join(folder, `${++count}.output`)
    const written = openSync(output, 'w')
    const args = ['--disable-warning=ExperimentalWarning', '--require', LIBRARIES, ...options, WORKER]
    const child = spawn(process.execPath, args, {
      cwd: root,
      detached: true,
      stdio: ['ignore', ...(isShown ? /** @type {const} */ (['inherit', 'inherit']) : [written, written]), 'ipc'],
    })
    closeSync(written)
    const { pid = 0 } = child
    const worker = { child, pid, output }
    const kill = () => killGroup(pid)
    if (pid) care.include(-pid)
    stopping.addEventListener('abort', kill)
    child.once('exit', () => {
      idle.delete(worker)
      stopping.removeEventListener('abort', kill)
      kill()
      if (pid) care.exclude(-pid)
    })
    return worker
  }

  /**
   * @param {string} file
   * @returns {Promise<FileResult>}
   */
  const runFile = async file => {
    const started = performance.now()
    const isLast = isShown || wantsOwn(path.join(root, file))
    const worker = (!isLast && takeOf(idle)) || start()
    const saidBefore = sizeOf(worker.output)
    let isTimedOut = false
    const timer = setTimeout(() => {
      isTimedOut = true
      killGroup(worker.pid)
    }, timeoutMs)
    const { events, ended, ending } = await heard(worker.child, { file, isLast, isShown, only })
    clearTimeout(timer)
    const mayGoOn = !isLast && ended !== undefined && ended.residentMB < MOST_MB && worker.child.connected
    if (mayGoOn) idle.add(worker)
    else killGroup(worker.pid)
    const said = readFileSync(worker.output).subarray(saidBefore).toString()
    const result = resultOf(file, events, { code: ending, said, timedOutMs: isTimedOut ? timeoutMs : 0 })
    return { ...result, wallS: (performance.now() - started) / 1000, cpuS: ended?.cpuS ?? 0 }
  }

  const end = async () => {
    const ended = [...idle].map(({ child, pid }) => {
      const exit = once(child, 'exit')
      killGroup(pid)
      return exit
    })
    await Promise.all(ended)
  }
  return { runFile, end }
}

/** @template Each @param {Set<Each>} from */
const takeOf = from => {
  const [one] = from
  if (one) from.delete(one)
  return one
}

const sizeOf = (/** @type {string} */ file) => statSync(file).size

/** Whether a file says that it needs a process of its own, in a comment that gives the reason. */
const wantsOwn = (/** @type {string} */ file) => {
  try {
    return /^ *\/\/ In a process of its own: /m.test(readFileSync(file, 'utf8'))
  } catch {
    return false
  }
}

/**
 * Sends an order, and hears what comes of it until the file has ended, or the process if it is its last one.
 *
 * @param {import('node:child_process').ChildProcess} child
 * @param {import('./worker.js').Order} order
 * @returns {Promise<Heard>}
 *
 * @typedef {object} Heard
 * @property {import('./events.js').TestEvent[]} events
 * @property {import('./worker.js').End} [ended]
 * @property {number | string} ending
 */
const heard = (child, order) =>
  new Promise((resolve, reject) => {
    /** @type {Heard} */
    const all = { events: [], ending: 0 }
    const hear = (/** @type {import('./worker.js').Told} */ told) => {
      if (told.is !== 'ended') return void all.events.push(told)
      all.ended = told
      if (!order.isLast) end(0)
    }
    const exited = (/** @type {number | null} */ code, /** @type {string | null} */ signal) => end(code ?? signal ?? 1)
    const end = (/** @type {number | string} */ ending) => {
      child.off('message', hear).off('exit', exited).off('error', reject)
      resolve({ ...all, ending })
    }
    child.on('message', hear).once('exit', exited).once('error', reject)
    child.send(order)
  })

/** @param {number} pid */
const killGroup = pid => {
  try {
    if (pid) process.kill(-pid, 'SIGKILL')
  } catch {
    // Nothing of it runs any more.
  }
}

/**
 * @param {string} file
 * @param {import('./events.js').TestEvent[]} events
 * @param {{ code: number | string, said: string, timedOutMs: number }} ending
 */
const resultOf = (file, events, { code, said, timedOutMs }) => {
  let passed = 0
  /** @type {Failure[]} */
  const failures = []
  /** @type {FileResult['skipped']} */
  const skipped = []
  /** @type {Set<string>} */
  const begun = new Set()
  const notes = []
  for (const event of events) {
    if (event.is === 'said') notes.push(event.text)
    else if (event.is === 'begun') begun.add(event.path.at(-1) ?? '')
    else begun.delete(event.path.at(-1) ?? '')
    if (event.is === 'passed') passed += 1
    if (event.is === 'skipped') skipped.push({ path: event.path, reason: event.reason })
    if (event.is === 'failed') {
      const place = `${path.relative(process.cwd(), event.file ?? file)}:${event.line ?? 1}`
      failures.push({ file, title: event.path.join(' › '), place, detail: event.error })
    }
  }
  if (code !== 0 && (failures.length === 0 || timedOutMs > 0)) {
    const what = timedOutMs > 0 ? `did not end within ${timedOutMs / 1000} s` : `ended with ${code}`
    const where = timedOutMs > 0 && begun.size > 0 ? `\nNot ended by then: ${[...begun].join(' › ')}` : ''
    const detail = [...notes, said.trim().slice(-OUTPUT_SHOWN)].filter(Boolean).join('\n')
    failures.push({ file, title: `the file ${what}`, place: file, detail: detail + where })
  }
  return { file, passed, failures, skipped }
}
