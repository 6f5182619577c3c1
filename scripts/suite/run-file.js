import { spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'

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

const REPORTER = new URL('events.js', import.meta.url).href
const OUTPUT_SHOWN = 4000

let count = 0

/**
 * Runs one test file in a process of its own. What it leaves running ends with it.
 *
 * @param {string} file
 * @param {object} how
 * @param {string} how.root the folder that tests run in
 * @param {string} how.folder for what the runner needs until the file ends
 * @param {string[]} how.options of Node
 * @param {number} how.timeoutMs
 * @param {boolean} how.isShown whether its results and output are shown while it runs
 * @param {import('../aftercare.js').Aftercare} how.care
 * @param {AbortSignal} how.stopping
 * @returns {Promise<FileResult>}
 */
export const runFile = async (file, { root, folder, options, timeoutMs, isShown, care, stopping }) => {
  const started = performance.now()
  const events = path.join(folder, `${++count}.events`)
  const outputFile = path.join(folder, `${count}.output`)
  const output = openSync(outputFile, 'w')
  const isReporterGiven = options.some(option => /^--test-reporter(=|$)/.test(option))
  const child = spawn(
    process.execPath,
    [
      '--disable-warning=ExperimentalWarning',
      ...options,
      ...(isReporterGiven ? ['--test-reporter-destination=stdout'] : []),
      ...(isShown && !isReporterGiven ? ['--test-reporter=spec', '--test-reporter-destination=stdout'] : []),
      `--test-reporter=${REPORTER}`,
      `--test-reporter-destination=${events}`,
      file,
    ],
    { cwd: root, detached: true, stdio: isShown ? ['ignore', 'inherit', 'inherit'] : ['ignore', output, output] },
  )
  const { pid = 0 } = child
  const kill = () => killGroup(pid)
  if (pid) care.include(-pid)
  stopping.addEventListener('abort', kill)
  let isTimedOut = false
  const timer = setTimeout(() => {
    isTimedOut = true
    kill()
  }, timeoutMs)
  const { code, cpuS } = await endOf(child)
  clearTimeout(timer)
  stopping.removeEventListener('abort', kill)
  kill()
  if (pid) care.exclude(-pid)
  closeSync(output)
  const said = readFileSync(outputFile, 'utf8')
  const result = resultOf(file, readEvents(events), { code, said, timedOutMs: isTimedOut ? timeoutMs : 0 })
  for (const made of [events, outputFile]) rmSync(made, { force: true })
  return { ...result, wallS: (performance.now() - started) / 1000, cpuS }
}

/** @param {number} pid */
const killGroup = pid => {
  try {
    if (pid) process.kill(-pid, 'SIGKILL')
  } catch {
    // Nothing of it runs any more.
  }
}

/**
 * @param {import('node:child_process').ChildProcess} child
 * @returns {Promise<{ code: number | string, cpuS: number }>}
 */
const endOf = child =>
  new Promise((resolve, reject) => {
    const before = cpuOfEnded()
    child.on('error', reject)
    child.on('exit', (code, signal) => resolve({ code: code ?? signal ?? 1, cpuS: sinceLast(before) }))
  })

let lastCpuS = 0

/** @param {number} before */
const sinceLast = before => {
  const now = cpuOfEnded()
  const spent = now - Math.max(before, lastCpuS)
  lastCpuS = now
  return spent
}

const CLOCK_TICKS_A_SECOND = 100

/** The processor seconds of this process's children that have ended, and of theirs; 0 where there is no /proc. */
export const cpuOfEnded = () => {
  try {
    const stat = readFileSync('/proc/self/stat', 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return (Number(fields[13]) + Number(fields[14])) / CLOCK_TICKS_A_SECOND
  } catch {
    return 0
  }
}

/**
 * @param {string} file
 * @returns {import('./events.js').TestEvent[]}
 */
const readEvents = file => {
  try {
    const lines = readFileSync(file, 'utf8').split('\n')
    // The last line ends with a line break, unless the process was killed in the middle of it.
    return lines.slice(0, -1).map(line => JSON.parse(line))
  } catch {
    return []
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
