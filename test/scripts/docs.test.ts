import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { topics } from '../../cli/help/topics.ts'
import { ownMetrics } from '../../scripts/metrics-reference.ts'
import { settings } from '../../server/config.ts'
import { errorCodes, failureReasons } from '../../shared/vocabulary.ts'
import { repository } from './checkout.ts'

// Compares what pages say about the program with the program.

const pages = globSync(['*.md', 'docs/**/*.md'], { cwd: repository }).sort()
const reference = (name: string): string => read(`docs/reference/${name}.md`)
const read = (page: string): string => readFileSync(path.join(repository, page), 'utf8')

test('every file that a page names is there', () => {
  const missing = pages.flatMap(page => {
    const named = read(page).matchAll(IN_THE_REPOSITORY)
    return [...named].flatMap(([, name]) => (isThere(name!) ? [] : [`${page}: ${name}`]))
  })
  assert.deepEqual(missing, [])
})

const IN_THE_REPOSITORY = /`((?:bin|cli|docs|examples|migrations|receiver|scripts|server|shared|test)\/[^`\s]*)`/g

/** A name may have words for what varies: `cli/commands/NOUN.ts`. */
const isThere = (name: string): boolean => globSync(name.replace(/\b[A-Z]{3,}\b/, '*'), { cwd: repository }).length > 0

test('every link from page to page leads somewhere', () => {
  const broken = pages.flatMap(page =>
    [...read(page).matchAll(/\]\((?!https?:|#|mailto:)([^)#\s]+)/g)].flatMap(([, target]) =>
      existsSync(path.join(repository, path.dirname(page), target!)) ? [] : [`${page}: ${target}`],
    ),
  )
  assert.deepEqual(broken, [])
})

test('the README is a front page of at most 150 lines, with both pictures', () => {
  const lines = read('README.md').split('\n')
  assert.ok(lines.length <= 151, `${lines.length}`)
  for (const name of ['dashboard', 'timeline'])
    assert.ok(lines.some(line => line.includes(`docs/pictures/${name}.svg`)))
})

/** The matches of a pattern in a page's inline code. */
const named = (pattern: RegExp): { page: string; name: string }[] =>
  pages.flatMap(page =>
    [...read(page).matchAll(/`([^`\n]+)`/g)].flatMap(([, words = '']) =>
      [...words.matchAll(pattern)].map(([name]) => ({ page, name })),
    ),
  )

const unknownAmong = (found: { page: string; name: string }[], known: readonly string[]): string[] =>
  found.filter(({ name }) => !known.includes(name)).map(({ page, name }) => `${page}: ${name}`)

test('every setting that a page names is one of the server’s or of the command line’s', () => {
  const ofTests = ['TIDINGS_TEST_DATABASE_URLS', 'TIDINGS_TEST_ENGINES']
  const inEnvironment = topics.find(({ name }) => name === 'environment')!.text.match(/TIDINGS_[A-Z_]+/g)!
  const found = named(/TIDINGS_[A-Z_]*[A-Z]/g).filter(({ page }) => page !== 'CHANGELOG.md')
  assert.ok(found.length > 80, `${found.length}`)
  assert.deepEqual(unknownAmong(found, [...settings, ...inEnvironment, ...ofTests]), [])
})

test('every metric that a page names is one of Tidings’ own', async () => {
  const known = (await ownMetrics()).map(({ name }) => name)
  const found = named(/\btidings_[a-z_]*[a-z]\b/g)
    .map(({ page, name }) => ({ page, name: name.replace(/_(bucket|sum|count)$/, '') }))
    .filter(({ name }) => !NO_METRICS.includes(name))
  assert.ok(found.length > 30, `${found.length}`)
  const isKnown = (name: string) => known.some(each => each === name || each.startsWith(`${name}_`))
  assert.deepEqual(
    found.filter(({ name }) => !isKnown(name)),
    [],
  )
})

/** The table of the receiver kit. */
const NO_METRICS = ['tidings_receipts']

test('every code in capitals that a page names is a code of an error', () => {
  const own = [...reference('errors').matchAll(/^\| `([A-Z_]+)`/gm)].map(([, code]) => code!)
  const found = pages
    .filter(page => page !== 'CHANGELOG.md')
    .flatMap(page =>
      [...read(page).matchAll(/`([A-Z]{3,}(?:_[A-Z]+)+|UNAVAILABLE|CONFLICT)`/g)].map(([, name]) => ({
        page,
        name: name!,
      })),
    )
    .filter(({ name }) => !/^(TIDINGS|OTEL|HTTPS?|ALL|VERIFY|GET)_/.test(name))
  assert.ok(found.length > 20, `${found.length}`)
  assert.deepEqual(unknownAmong(found, [...errorCodes, ...own]), [])
})

test('every reason of a failed attempt that the runbooks name is one of the vocabulary', () => {
  const words = /`([a-z]+_(?:error|refused|reset|timeout|allowed|response|url|failed)|unreachable)`/g
  const found = pages
    .filter(page => page.startsWith('docs/runbooks/'))
    .flatMap(page => [...read(page).matchAll(words)].map(([, name]) => ({ page, name: name! })))
  assert.ok(found.length >= 4, `${found.length}`)
  assert.deepEqual(unknownAmong(found, Object.keys(failureReasons)), [])
})
