import { existsSync, globSync, statSync } from 'node:fs'
import path from 'node:path'

/** Options of Node that come with a value, as the next argument or after `=`. */
const VALUED = ['name-pattern', 'skip-pattern', 'timeout', 'concurrency'].map(name => `--test-${name}`)

/**
 * @typedef {object} Options
 * @property {boolean} isAll everything at full size, for the night and before a release
 * @property {string} [changedSince] runs what imports the files that have changed since this revision
 * @property {boolean} writesTimes
 * @property {number} [slots]
 * @property {number} [timeoutMs] of a file
 * @property {import('./worker.js').Only} only
 * @property {string[]} forNode
 * @property {string[]} files relative to the root; none: all
 */

/**
 * Reads what follows `npm test --`. Throws an Error that says what would be right.
 *
 * @param {string[]} args
 * @param {string} root
 * @returns {Options}
 */
export const readOptions = (args, root) => {
  /** @type {Options} */
  const options = { isAll: false, writesTimes: false, only: {}, forNode: [], files: [] }
  const rest = [...args]
  /** @type {string[]} */
  const named = []
  /** @type {string[]} */
  const skipped = []
  for (let arg = rest.shift(); arg !== undefined; arg = rest.shift()) {
    const [name = '', ...value] = arg.split('=')
    if (!arg.startsWith('-')) options.files.push(...filesOf(arg, root))
    else if (arg === '--all') options.isAll = true
    else if (arg === '--times') options.writesTimes = true
    else if (name === '--changed') options.changedSince = value.join('=') || 'HEAD'
    else {
      const given = VALUED.includes(name) && value.length === 0 ? `${arg}=${rest.shift() ?? ''}` : arg
      const text = given.slice(given.indexOf('=') + 1)
      const number = Number(text)
      if (name === '--test-name-pattern') named.push(text)
      else if (name === '--test-skip-pattern') skipped.push(text)
      else if (name === '--test-concurrency') options.slots = Math.max(1, number || 1)
      else if (name === '--test-timeout') options.timeoutMs = number || 0
      else options.forNode.push(given)
    }
  }
  options.files = [...new Set(options.files)]
  if (named.length > 0) options.only.testNamePatterns = named
  if (skipped.length > 0) options.only.testSkipPatterns = skipped
  if (options.changedSince !== undefined && options.files.length > 0)
    throw new Error('--changed finds the files itself: name no files, or leave --changed out.')
  return options
}

/** The test files below a folder. */
export const testFiles = (/** @type {string} */ root, folder = 'test') =>
  globSync(path.join(folder, '**/*.test.ts'), { cwd: root })
    .filter(file => !file.startsWith(path.join('test', 'bench')))
    .sort()

/**
 * @param {string} named a file, a folder or a pattern
 * @param {string} root
 */
const filesOf = (named, root) => {
  const found = path.resolve(root, named)
  const files = existsSync(found)
    ? statSync(found).isDirectory()
      ? testFiles(root, path.relative(root, found))
      : [path.relative(root, found)]
    : globSync(named, { cwd: root }).sort()
  if (files.length === 0) throw new Error(`There is no test file ${named}.`)
  return files
}
