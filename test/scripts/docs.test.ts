import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { settings } from '../../server/config.ts'
import { repository } from './checkout.ts'

// What pages say of the program is compared with the program.

const pages = globSync(['*.md', 'docs/**/*.md'], { cwd: repository }).sort()
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

test('every setting of the server is in the README, and no other', () => {
  const rows = read('README.md')
    .split('\n')
    .filter(line => /^\| `TIDINGS_/.test(line))
  const named = rows.flatMap(row => [...row.split('|')[1]!.matchAll(/`(TIDINGS_\w+)`/g)].map(([, name]) => name!))
  assert.deepEqual(named.sort(), settings.filter(name => !name.endsWith('_FILE')).sort())
})
