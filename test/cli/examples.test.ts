import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { topics } from '../../cli/help/topics.ts'
import { describeProgram, examplesIn } from '../../cli/help/tree.ts'
import { wholeProgram } from '../../cli/main.ts'
import { temporaryFolder } from './tidings.ts'

// Every example of every help, as a person pastes it into a shell.

const program = await wholeProgram()
type Described = Pick<ReturnType<typeof describeProgram>, 'command' | 'examples' | 'commands'>
const allOf = ({ command, examples, commands }: Described): { command: string; line: string }[] => [
  ...examples.flatMap(({ purpose, line }) => (/PowerShell/.test(purpose) ? [] : [{ command, line }])),
  ...commands.flatMap(allOf),
]
const examples = allOf(describeProgram(program))
const topicExamples = topics.flatMap(({ name, text }) =>
  [...text.matchAll(/^ {2}\$ (.+)$/gm)].map(([, line = '']) => ({ command: `help ${name}`, line })),
)

/** A folder with the files of the examples, and programs that only record their calls. */
const folder = temporaryFolder()
const bin = join(folder, 'bin')
mkdirSync(bin)
mkdirSync(join(folder, 'received'))
for (const name of ['tidings', 'curl', 'jq', 'install', 'npx', 'systemctl']) {
  // Written at once: both ends of a pipe begin together.
  const note = `call=$(printf '%s\\037' "$@") && printf '%s\\n' "$call" >> "$CALLS"`
  const noted = `#!/bin/sh\n[ ${name} = tidings ] && ${note}\n`
  writeFileSync(join(bin, name), `${noted}[ -p /dev/stdin ] && cat > /dev/null\necho ID\n`, { mode: 0o755 })
}
for (const file of [
  'secret.txt',
  'token.txt',
  'query.graphql',
  'variables.json',
  'jwks.json',
  'webhooks.json',
  'mutation.json',
  'query.json',
  'received/delivery.http',
])
  writeFileSync(join(folder, file), '')

/** How the command line was called by all these lines in a shell. */
const callsIn = (shell: string[], lines: string[]): string[][] => {
  const script = join(folder, 'script')
  const calls = join(folder, 'calls')
  writeFileSync(script, `${lines.join('\n')}\n`)
  writeFileSync(calls, '')
  const env = { ...process.env, HOME: folder, PATH: `${bin}:${process.env.PATH}`, CALLS: calls }
  const { status, stderr } = spawnSync(shell[0]!, [...shell.slice(1), script], { cwd: folder, env, encoding: 'utf8' })
  assert.equal(stderr, '')
  assert.ok(status !== null)
  return readFileSync(calls, 'utf8')
    .trimEnd()
    .split('\n')
    .map(line => line.split('\u001f').slice(0, -1))
}

const lines = [...examples, ...topicExamples].map(({ line }) => line)

test('there are examples, and none is folded into another', () => {
  assert.ok(examples.length > 100, `${examples.length}`)
  for (const { command, line } of examples) assert.doesNotMatch(line, /\$ (npx )?tidings/, command)
})

for (const [name, ...options] of [
  ['bash', '--norc'],
  ['zsh', '-f'],
  ['fish', '--no-config'],
]) {
  const skip = spawnSync(name!, ['--version']).status === 0 ? false : `${name} is not installed here`
  test(`every example can be pasted into ${name}, and means the same there`, { skip }, () => {
    // Both ends of a pipe begin at once.
    const inAnyOrder = (shell: string[]) =>
      callsIn(shell, lines)
        .map(call => JSON.stringify(call))
        .toSorted()
    assert.deepEqual(inAnyOrder([name!, ...options]), inAnyOrder(['bash', '--norc']))
  })
}

test('every example is understood by the command line', async () => {
  const silenced = (command: CommandUnknownOpts): void => {
    if (command.commands.length === 0) command.action(() => {})
    command.exitOverride().configureOutput({ writeOut: () => {} })
    for (const child of command.commands) silenced(child)
  }
  for (const call of callsIn(['bash', '--norc'], lines)) {
    const fresh = await wholeProgram()
    silenced(fresh)
    if (call[0] === 'help') continue
    await fresh.parseAsync(call, { from: 'user' }).catch(error => {
      assert.ok(/help/i.test(error.code), `tidings ${call.join(' ')}: ${error.message}`)
    })
  }
})

test('an example is read out of a help text with the lines it goes on in', () => {
  const text = '\nExamples:\n  # One\n  $ a \\\n    b\n\n  # Two\n  $ c\n  $ d\n'
  assert.deepEqual(examplesIn(text), [
    { purpose: 'One', line: 'a \\\n  b' },
    { purpose: 'Two', line: 'c\nd' },
  ])
})
