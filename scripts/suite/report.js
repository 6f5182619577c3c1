import os from 'node:os'
import { secondsLeft } from './schedule.js'

/** Without a terminal, progress is told this often. */
const TELL_EVERY_MS = 10_000
const REDRAW_EVERY_MS = 500
/** Of what was wrong, when it fails and once more at the end. */
const LINES_AT_ONCE = 4
const LINES_AT_THE_END = 60
const LONGEST = 400
/** Of so few files each gets a line when it ends. */
const FEW = 20

/**
 * Tells people how the run goes.
 *
 * @param {object} run
 * @param {string[]} run.files
 * @param {import('./schedule.js').Times} run.times
 * @param {boolean} run.isShown whether the only file tells its results itself
 * @param {NodeJS.WriteStream} [run.to]
 */
export const createReport = ({ files, times, isShown, to = process.stdout }) => {
  const startedAt = performance.now()
  /** @type {import('./workers.js').FileResult[]} */
  const results = []
  /** @type {Map<string, number>} when each began */
  const running = new Map()
  const isTerminal = to.isTTY === true && !process.env.CI

  const say = (/** @type {string} */ text) => to.write(`${isTerminal ? '\r\x1b[K' : ''}${text}\n`)
  const progress = () => {
    const done = results.map(({ file }) => file)
    const waiting = files.filter(file => !done.includes(file) && !running.has(file))
    const now = performance.now()
    const elapsedS = (now - startedAt) / 1000
    const soFar = new Map([...running].map(([file, at]) => [file, (now - at) / 1000]))
    const seconds = secondsLeft(times, { done, running: soFar, waiting, elapsedS })
    const failed = results.reduce((sum, { failures }) => sum + failures.length, 0)
    return [
      `${duration(elapsedS)}: ${done.length} of ${files.length} files`,
      ...(failed > 0 ? [`${failed} failed`] : []),
      ...(seconds === undefined ? [] : [`about ${duration(seconds)} left`]),
      `running ${[...running.keys()].map(name => name.replace(/^test\/|\.test\.ts$/g, '')).join(', ')}`,
    ].join(', ')
  }
  const draw = () => {
    if (running.size > 0) to.write(`\r\x1b[K${progress().slice(0, (to.columns ?? 80) - 1)}`)
  }
  const tell = () => {
    if (running.size > 0) say(progress())
  }
  const timer = isShown ? undefined : isTerminal ? setInterval(draw, REDRAW_EVERY_MS) : setInterval(tell, TELL_EVERY_MS)
  timer?.unref()

  return {
    results,
    begin: (/** @type {string} */ file) => void running.set(file, performance.now()),
    end: (/** @type {import('./workers.js').FileResult} */ result) => {
      running.delete(result.file)
      results.push(result)
      if (isShown) return
      if (files.length <= FEW || result.failures.length > 0) say(lineOf(result))
      for (const failure of result.failures) say(textOf(failure, LINES_AT_ONCE))
    },
    close: () => {
      clearInterval(timer)
      if (isTerminal && !isShown) to.write('\r\x1b[K')
    },
  }
}

/** @param {import('./workers.js').FileResult} result */
const lineOf = ({ file, passed, failures, skipped, wallS }) => {
  const sign = failures.length > 0 ? '✖' : '✔'
  return `${sign} ${file}: ${counts(passed, failures.length, skipped.length)}, ${wallS.toFixed(1)} s`
}

/**
 * @param {import('./workers.js').Failure} failure
 * @param {number} most how many lines are told of what was wrong
 */
const textOf = ({ title, place, detail }, most) => {
  const lines = detail.split('\n').map(line => `    ${line.length > LONGEST ? `${line.slice(0, LONGEST)} …` : line}`)
  const told = lines.length > most ? [...lines.slice(0, most), '    …'] : lines
  return `  ✖ ${title} (${place})\n${told.join('\n')}\n`
}

/**
 * @param {number} passed
 * @param {number} failed
 * @param {number} skipped
 */
const counts = (passed, failed, skipped) => `${passed} passed, ${failed} failed, ${skipped} skipped`

/** @param {number} seconds */
const duration = seconds =>
  seconds < 99.5 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`

/**
 * What is said at the end: what failed, once more; what was left out and why; and, as the last line, the counts.
 *
 * @param {import('./workers.js').FileResult[]} results
 * @param {object} run
 * @param {string[]} run.notes
 * @param {boolean} run.isShown
 * @param {number} run.wallS
 * @param {number} run.cpuS of everything, the database server too
 */
export const summary = (results, { notes, isShown, wallS, cpuS }) => {
  const failures = results.flatMap(result => result.failures)
  const skipped = results.flatMap(result => result.skipped)
  const again =
    isShown || failures.length === 0
      ? []
      : ['', 'What failed:', '', ...failures.map(failure => textOf(failure, LINES_AT_THE_END))]
  const cpu = cpuS > 0 ? ` and ${duration(cpuS)} of ${os.availableParallelism()} cores` : ''
  return [
    ...again,
    ...leftOut(skipped),
    `${results.length} ${results.length === 1 ? 'file' : 'files'} took ${duration(wallS)}${cpu}.`,
    ...notes,
    counts(
      results.reduce((sum, { passed }) => sum + passed, 0),
      failures.length,
      skipped.length,
    ),
  ].join('\n')
}

/** @param {{ path: string[], reason: string }[]} skipped */
const leftOut = skipped => {
  if (skipped.length === 0) return []
  const reasons = Object.groupBy(skipped, ({ reason }) => reason || 'no reason given')
  const told = Object.entries(reasons).map(([reason, those = []]) => `${reason} (${those.length})`)
  return [`Left out: ${told.join('; ')}.`]
}
