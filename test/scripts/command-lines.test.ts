import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { topics } from '../../cli/help/topics.ts'
import { wholeProgram } from '../../cli/main.ts'
import { temporaryFolder } from '../cli/tidings.ts'
import {
  allPages,
  BLOCKS_NOT_HERE,
  NOT_HERE,
  pageText,
  pastesOf,
  programNotHere,
  RUN_WITH_SANDBOX,
  RUN_WITH_SERVER,
  runnable,
} from '../support/pasted.ts'

// The commands that pages name exist, and shells understand what is pasted. test/cli/readme.test.ts and
// test/scripts/runbooks.test.ts run them.

const program = await wholeProgram()
const shells: [name: string, check: string][] = [
  ['bash', '-n'],
  ['zsh', '-n'],
]
const missing = (shell: string) => (spawnSync(shell, ['--version']).status === 0 ? false : `${shell} is not installed`)
const pastes = allPages.flatMap(page => pastesOf(page).map(paste => ({ page, paste })))

test('the pages have commands to paste, none of them with a comment, which zsh would run', () => {
  assert.ok(pastes.length >= 30, `${pastes.length}`)
  for (const { page, paste } of pastes) assert.doesNotMatch(paste, /(^|\s)#/, page)
})

for (const [shell, check] of shells) {
  test(`every command of a page is understood by ${shell}`, { skip: missing(shell) }, () => {
    const script = path.join(temporaryFolder(), 'paste')
    for (const { page, paste } of pastes) {
      writeFileSync(script, paste)
      assert.equal(spawnSync(shell, [check, script], { encoding: 'utf8' }).stderr, '', page)
    }
  })
}

test('whatever is said to be not here is named by a page', () => {
  const lines = pastes.flatMap(({ paste }) => paste.split('\n'))
  const used = new Set(lines.map(programNotHere))
  assert.deepEqual(
    Object.keys(NOT_HERE).filter(name => !used.has(name)),
    [],
  )
  for (const word of Object.keys(BLOCKS_NOT_HERE))
    assert.ok(
      pastes.some(({ paste }) => paste.includes(word)),
      word,
    )
})

test('every command of a page is run by a test, or is said to be not here', () => {
  const run = [...RUN_WITH_SANDBOX, ...RUN_WITH_SERVER]
  const forgotten = pastes.filter(({ page, paste }) => runnable(paste).trim() !== '' && !run.includes(page))
  assert.deepEqual(forgotten, [])
})

/** The commands in a page's inline code and shell blocks. */
const named = allPages.flatMap(page => {
  const text = pageText(page)
  const inline = [...text.matchAll(/`(?:npx )?tidings ([^`]+)`/g)].map(([, words = '']) => words.replaceAll('\n', ' '))
  const short = [...text.matchAll(/`(server [a-z]+(?: [^`]*)?)`/g)].map(([, words = '']) => words)
  const pasted = pastesOf(page).flatMap(paste =>
    [
      ...paste
        .replaceAll('\\\n', ' ')
        .replaceAll('"$(', '\n')
        .matchAll(/(?<![/\w@])tidings ([a-z][^\n|;)]*)/g),
    ].map(([, words = '']) => words),
  )
  return [...inline, ...short, ...pasted].map(words => ({ page, words }))
})

const FOR_ALL = ['--help', '-h', '--version', '--json']
const afterHelp = [...topics.map(({ name }) => name), ...program.commands.map(command => command.name())]

/** The first word of a command that the program does not have: a subcommand, a topic or a flag. */
const unknownIn = (line: string): string | undefined => {
  const words = line
    .replaceAll(/'[^']*'|"[^"]*"/g, 'TEXT')
    .trim()
    .split(/\s+/)
  if (words[0] === 'help') return words.slice(1).find(word => ![...afterHelp, ...FOR_ALL].includes(word))
  let command: CommandUnknownOpts = program
  for (const word of words) {
    const flag = word.split('=')[0]!
    const known = [...command.options, ...program.options].flatMap(({ long, short }) => [long, short])
    const child = command.commands.find(each => each.name() === word)
    if (child) command = child
    else if (/^--?\w/.test(word) && ![...known, ...FOR_ALL].includes(flag)) return flag
    else if (command.commands.length > 0 && /^[a-z]+$/.test(word)) return word
  }
  return undefined
}

test('every command that a page names, and every flag of it, is one of the program', () => {
  assert.ok(named.length > 120, `${named.length}`)
  const unknown = named.flatMap(({ page, words }) => {
    const word = unknownIn(words)
    return word === undefined ? [] : [`${page}: tidings ${words}: ${word}`]
  })
  assert.deepEqual(unknown, [])
})

test('a command, a topic or a flag that there is not would be found', () => {
  assert.equal(unknownIn('webhooks lst --output id'), 'lst')
  assert.equal(unknownIn('webhooks list --outpt id'), '--outpt')
  assert.equal(unknownIn('help selector'), 'selector')
})

test('every script of npm that a page names is in package.json', async () => {
  const { default: manifest } = await import('../../package.json', { with: { type: 'json' } })
  for (const page of allPages) {
    for (const [, name] of pageText(page).matchAll(/\bnpm run ([a-z]+)/g))
      assert.ok(name! in manifest.scripts, `${page}: npm run ${name}`)
  }
})
