import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'

/** The processor seconds that the tests of a change may take by the table of times: nearest first, and at least one. */
const WORTH_S = 30

/**
 * The test files that a change concerns, nearest first: those that changed, those named like what changed, then those
 * that import it, or name it as a file, over ever more steps. Those that are too many for a quick answer are left.
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
      return steps === undefined ? [] : [{ test, steps }]
    })
    .toSorted((a, b) => a.steps - b.steps)
  const nearest = /** @type {string[]} */ ([])
  let worthS = 0
  for (const { test } of found) {
    worthS += times[test]?.[1] ?? 3
    if (nearest.length > 0 && worthS > WORTH_S) break
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
  const { build, stop } = await import('esbuild')
  const { metafile } = await build({
    absWorkingDir: root,
    stdin: { contents: tests.map(test => `import './${test}'`).join('\n'), resolveDir: root },
    bundle: true,
    packages: 'external',
    platform: 'node',
    format: 'esm',
    write: false,
    metafile: true,
    logLevel: 'silent',
  })
  await stop()
  const git = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8' })
  const others = git.split('\n').filter(file => file && !(file in metafile.inputs))
  const pages = others.filter(file => !/\.(ts|js|mjs)$/.test(file))
  /** @type {Map<string, Set<string>>} */
  const importers = new Map()
  const add = (/** @type {string} */ file, /** @type {string} */ importer) => {
    if (!importers.has(file)) importers.set(file, new Set())
    importers.get(file)?.add(importer)
  }
  delete metafile.inputs['<stdin>']
  for (const [importer, { imports }] of Object.entries(metafile.inputs)) {
    for (const { path: imported, external } of imports) if (!external) add(imported, importer)
    for (const named of namedIn(readFileSync(path.join(root, importer), 'utf8'), importer)) {
      if (named in metafile.inputs || others.includes(named)) add(named, importer)
      else
        for (const page of pages) if (page.startsWith(`${named}/`) || path.matchesGlob(page, named)) add(page, importer)
    }
  }
  return importers
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
