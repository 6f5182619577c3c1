import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'

/** The processor seconds that the tests of a change may take by the table of times: nearest first, and at least one. */
const WORTH_S = 30

/**
 * The test files that a change concerns, nearest first: those that changed, and those named like what changed; then
 * those that import it, or name it as a file, with the most words of its path first, since every test of the command
 * line imports every command, and then those over the fewest steps. What is too much for a quick answer is left.
 *
 * @param {string} root
 * @param {string} since a revision; what has changed in the working tree since then counts
 * @param {string[]} tests
 * @param {import('./schedule.js').Times} times
 */
export const testsOfChange = async (root, since, tests, times) => {
  const changed = changedFiles(root, since)
  const stepsTo = await importSteps(root, tests, changed)
  const found = tests
    .flatMap(test => {
      const steps = changed.some(file => isNamedLike(test, file)) ? 0 : stepsTo.get(test)
      const inCommon = Math.max(0, ...changed.map(file => wordsInCommon(test, file)))
      return steps === undefined ? [] : [{ test, steps, inCommon }]
    })
    .toSorted((a, b) => Number(b.steps === 0) - Number(a.steps === 0) || b.inCommon - a.inCommon || a.steps - b.steps)
  const nearest = /** @type {string[]} */ ([])
  let worthS = 0
  for (const { test } of found) {
    const testS = times[test]?.[1] ?? 3
    if (nearest.length > 0 && worthS + testS > WORTH_S) continue
    worthS += testS
    nearest.push(test)
  }
  return { changed, files: nearest, left: found.length - nearest.length }
}

/**
 * @param {string} root
 * @param {string} since
 */
const changedFiles = (root, since) => {
  const git = (/** @type {string[]} */ ...args) =>
    execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).split('\n')
  const names = [
    ...git('diff', '--name-only', '--relative', since, '--'),
    ...git('ls-files', '--others', '--exclude-standard'),
  ]
  return names.filter(Boolean)
}

/**
 * Whether a test is of a file by its name: `test/cli/verify.test.ts` is of `cli/verify/verify.ts`.
 *
 * @param {string} test
 * @param {string} file
 */
export const isNamedLike = (test, file) => {
  if (test === file) return true
  const name = path.basename(file).replace(/\.[^.]+$/, '')
  const [, room] = file.startsWith('server/') ? file.split('/') : ['', file.split('/')[0]]
  return path.dirname(test) === path.join('test', room ?? '') && path.basename(test).startsWith(`${name}.`)
}

const wordsOf = (/** @type {string} */ file) =>
  new Set(
    file
      .replace(/^(server|test)\/|\.\w+$/g, '')
      .split(/[^a-z]+/)
      .map(word => word.replace(/s$/, '')),
  )

/**
 * How many words two paths share, but for an s at the end.
 *
 * @param {string} one
 * @param {string} other
 */
const wordsInCommon = (one, other) => wordsOf(one).intersection(wordsOf(other)).size

/**
 * Over how many imports each test reaches one of the files.
 *
 * @param {string} root
 * @param {string[]} tests
 * @param {string[]} files
 */
const importSteps = async (root, tests, files) => {
  const importers = await importersOf(root, tests)
  /** @type {Map<string, number>} */
  const steps = new Map(files.map(file => [file, 0]))
  for (const [file, step] of steps) {
    for (const importer of importers.get(file) ?? []) if (!steps.has(importer)) steps.set(importer, step + 1)
  }
  return steps
}

/**
 * Who imports each file, by esbuild, and who names it in a string: a page that is read, a program that is started.
 *
 * @param {string} root
 * @param {string[]} tests
 */
const importersOf = async (root, tests) => {
  const git = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8' })
  const files = new Set(git.split('\n').filter(Boolean))
  /** @type {Map<string, Set<string>>} */
  const importers = new Map()
  const add = (/** @type {string} */ file, /** @type {string} */ importer) => {
    if (!importers.has(file)) importers.set(file, new Set())
    importers.get(file)?.add(importer)
  }
  /** @type {Map<string, string[]>} */
  const read = new Map()
  // A program that is started imports something too.
  for (let programs = tests; programs.length > 0; ) {
    const inputs = await inputsOf(root, programs)
    for (const [importer, imports] of inputs) {
      if (read.has(importer)) continue
      read.set(importer, [...namedIn(readFileSync(path.join(root, importer), 'utf8'), importer)])
      for (const imported of imports) add(imported, importer)
    }
    programs = [...read.values()].flat().filter(named => CODE.test(named) && files.has(named) && !read.has(named))
  }
  const pages = [...files].filter(file => !CODE.test(file))
  for (const [importer, names] of read) {
    for (const named of names) {
      if (files.has(named)) add(named, importer)
      else for (const page of pages) if (isWithin(page, named)) add(page, importer)
    }
  }
  return importers
}

/**
 * Whether a path or a pattern names a file, or a folder that it is in.
 *
 * @param {string} file
 * @param {string} named
 */
const isWithin = (file, named) => (named.includes('*') ? path.matchesGlob(file, named) : file.startsWith(`${named}/`))

const CODE = /\.(ts|js|mjs)$/

/**
 * What each file imports that programs consist of.
 *
 * @param {string} root
 * @param {string[]} programs
 */
const inputsOf = async (root, programs) => {
  const { build, stop } = await import('esbuild')
  const { metafile } = await build({
    absWorkingDir: root,
    stdin: { contents: programs.map(program => `import './${program}'`).join('\n'), resolveDir: root },
    bundle: true,
    packages: 'external',
    // What a build makes need not be there.
    external: ['../dist/*'],
    platform: 'node',
    format: 'esm',
    loader: { '.css': 'empty' },
    write: false,
    metafile: true,
    logLevel: 'silent',
  })
  await stop()
  return Object.entries(metafile.inputs)
    .filter(([name]) => name !== '<stdin>')
    .map(([name, { imports }]) => /** @type {const} */ ([name, imports.filter(it => !it.external).map(it => it.path)]))
}

/**
 * The paths and patterns that a file has in its strings, from its own folder and from the root.
 *
 * @param {string} text
 * @param {string} file
 */
const namedIn = (text, file) => {
  const strings = [...text.matchAll(/(['"`])([\w.@*/-]*[\w/])\1/g)].map(([, , found = '']) => found)
  const paths = strings.flatMap(found => [path.join(path.dirname(file), found), path.normalize(found)])
  return new Set(paths.map(found => found.replace(/\/$/, '')).filter(found => found !== '.' && !found.startsWith('..')))
}
