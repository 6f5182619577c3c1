import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { manualPages } from '../../cli/help/manual.ts'
import { topics } from '../../cli/help/topics.ts'
import { wholeProgram } from '../../cli/main.ts'
import { displayWidth } from '../../cli/output/table.ts'
import { fitHelp } from '../../cli/output/wrap.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()

// Every command of the program itself, so that none is forgotten.

const program = await wholeProgram()
const withChildren = (command: CommandUnknownOpts): CommandUnknownOpts[] => [
  command,
  ...command.commands.flatMap(withChildren),
]
const pathOf = (command: CommandUnknownOpts): string =>
  command.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name()
const helpOf = (command: CommandUnknownOpts, columns = 80): string => {
  let help = ''
  command.configureOutput({
    writeOut: text => {
      help += text
    },
    getOutHelpWidth: () => columns,
    getOutHasColors: () => false,
  })
  command.outputHelp()
  return help
}

for (const command of withChildren(program)) {
  test(`the help of ${pathOf(command)} says what it is for, gives examples, and fits 80 columns`, () => {
    const help = helpOf(command)
    assert.ok(command.description() || command.summary(), 'no description')
    assert.match(help, command === program ? /Begin with:\n {2}\$ tidings / : /Examples:\n {2}# .+\n {2}\$ /)
    assert.doesNotMatch(help, /^ {2}\$ [^'"\n]* #/m, 'zsh takes a comment behind a command for words of it')
    const wide = help.split('\n').filter(line => displayWidth(line) > 80)
    assert.deepEqual(wide, [])
    for (const option of command.options) assert.ok(option.description, `${option.flags} is not described`)
    for (const argument of command.registeredArguments) assert.ok(argument.description, `<${argument.name()}> is not`)
    // A sentence about each, beside the others: the summary is what the level above lists.
    if (command !== program) assert.ok(command.summary() || command.description().length < 100, 'no summary')
  })
}

for (const columns of [40, 56, 79]) {
  test(`help has no line that is too wide for ${columns} columns, but for words that are`, () => {
    const texts = [...withChildren(program).map(command => helpOf(command, columns)), ...topics.map(({ text }) => text)]
    const lines = texts.flatMap(text => fitHelp(text, columns).split('\n'))
    const hasWideWord = (line: string) =>
      (line.match(/(?:'[^']*'|"[^"]*"|\S)+/g) ?? []).some(word => word.length > columns - 6)
    assert.deepEqual(
      lines.filter(line => displayWidth(line) > columns && !hasWideWord(line)),
      [],
    )
    // A command that was broken can be pasted as it is.
    assert.deepEqual(
      lines.filter(line => /^ *\\$/.test(line)),
      [],
    )
  })
}

test('help in a narrow terminal breaks paragraphs and commands anew', () => {
  const text = `What is written for eighty columns is broken in two where the terminal has fewer of
them.
Next.

  $ tidings webhooks create https://example.com/hooks --events \\
    token_expired \\
    --name Ledger
  $ tidings demo          see it`
  const fitted = `What is written for eighty columns is
broken in two where the terminal has
fewer of them.
Next.

  $ tidings webhooks create \\
    https://example.com/hooks \\
    --events token_expired --name \\
    Ledger
  $ tidings demo          see it`
  assert.equal(fitHelp(text, 40), fitted)
  assert.equal(fitHelp(text, 100), text)
  assert.equal(fitHelp(text, undefined), text)
})

const folder = new URL('../../cli/commands/', import.meta.url)
for (const file of readdirSync(folder)) {
  test(`what cli/commands/${file} has to offer is a command of the program`, async () => {
    const exported: Record<string, unknown> = await import(new URL(file, folder).href)
    const made = Object.entries(exported).filter(([name]) => name.endsWith('Command'))
    for (const [name, make] of made) {
      const command = (make as () => CommandUnknownOpts)()
      const registered = withChildren(program).some(
        each => each.name() === command.name() && each.description() === command.description(),
      )
      assert.ok(registered, `${name} is neither in cli/main.ts nor under a command that is`)
    }
  })
}

test('a command of the program is in the help of the program, with its summary', () => {
  const help = helpOf(program)
  for (const command of program.commands) assert.match(help, new RegExp(`^ {2}${command.name()} {2,}\\S`, 'm'))
})

const said = (...args: string[]) => tidings(args, { home })

test('a topic of the help is told, within 80 columns, and named by the help of the program', async () => {
  for (const { name, text } of topics) {
    const { code, stdout } = await said('help', name)
    assert.equal(code, 0)
    assert.equal(stdout, `${text}\n`)
    assert.deepEqual(
      text.split('\n').filter(line => displayWidth(line) > 80),
      [],
    )
    assert.match(helpOf(program), new RegExp(name))
  }
})

test('a noun or verb after help has its help told, and that is all', async () => {
  for (const words of [['webhooks'], ['webhooks', 'create']]) {
    const { code, stdout, stderr } = await said('help', ...words)
    assert.deepEqual([code, stderr], [0, ''])
    assert.equal(stdout, (await said(...words, '--help')).stdout)
  }
})

test('a misspelt noun or verb after help is wrong usage, and told with what was meant', async () => {
  for (const [words, hint] of [
    [['webhoks'], /Did you mean webhooks\?/],
    [['webhooks', 'lst'], /Did you mean list\?/],
    [['zzz'], /There are webhooks, .*environment/],
  ] as const) {
    const { code, stdout, stderr } = await said('help', ...words)
    assert.equal(code, 2)
    assert.equal(stdout, '')
    assert.match(stderr, hint)
  }
})

test('help --json is the tree of commands with their options, for programs', async () => {
  const { code, stdout } = await said('help', '--json')
  assert.equal(code, 0)
  const tree = JSON.parse(stdout)
  const find = (...path: string[]) =>
    path.reduce((at, name) => at.commands.find((each: { command: string }) => each.command.endsWith(` ${name}`)), tree)
  const count = (at: { commands: object[] }): number =>
    1 + at.commands.reduce((sum, child) => sum + count(child as never), 0)
  assert.equal(count(tree), withChildren(program).length)
  const status = find('deliveries', 'list').options.find((option: { long: string }) => option.long === '--status')
  assert.deepEqual(status.choices, ['pending', 'delivered', 'rejected', 'dropped', 'cancelled'])
  assert.equal(find('webhooks', 'show').arguments[0].required, true)
  assert.match(find('webhooks', 'create').examples[0].line, /^tidings webhooks create https/)
  assert.equal(tree.exitCodes.verificationFailed, 6)
})

test('a command in colour is named as it was started, once', () => {
  const module = new URL('../../cli/output/program.ts', import.meta.url).href
  const text = '\u001b[1mtidings demo\u001b[22m or tidings listen; see https://x/tidings here'
  const script = `import { asStarted } from ${JSON.stringify(module)}; console.log(asStarted(${JSON.stringify(text)}))`
  for (const [event, name] of [
    ['start', 'npx tidings'],
    ['', 'tidings'],
  ] as const) {
    const env = { PATH: process.env.PATH!, npm_lifecycle_event: event }
    const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', script], { env, encoding: 'utf8' })
    assert.equal(stdout, `\u001b[1m${name} demo\u001b[22m or ${name} listen; see https://x/tidings here\n`)
  }
})

test('hints and help name the program as it was started', async () => {
  const npx = { npm_command: 'exec', npm_lifecycle_event: 'npx' }
  const whoami = await tidings(['whoami'], { home, env: npx })
  assert.match(whoami.stderr, /Log in with: npx tidings login\./)
  const json = await tidings(['whoami', '--output', 'json'], { home, env: npx })
  assert.match(JSON.parse(json.stderr).error.hint, /npx tidings login/)
  const help = await tidings(['webhooks', 'create', '--help'], { home, env: npx })
  assert.match(help.stdout, /^ {2}\$ npx tidings webhooks create /m)
  assert.doesNotMatch(help.stdout, /\$ tidings/)
  assert.match((await tidings(['whoami'], { home })).stderr, /Log in with: tidings login\./)
})

const pages = manualPages(program, '1.2.3')

test('there is a manual page for the program, each noun and each topic, with every option of every command', () => {
  assert.equal(pages.length, 1 + program.commands.length + topics.length)
  for (const noun of program.commands) {
    const { text } = pages.find(({ file }) => file === `tidings-${noun.name()}.1`)!
    for (const { flags } of withChildren(noun).flatMap(({ options }) => options)) {
      assert.ok(text.includes(`.B ${flags.replaceAll('-', '\\-')}`), `${noun.name()} ${flags}`)
    }
  }
})

const noGroff = spawnSync('groff', ['--version']).status === 0 ? false : 'groff is not installed here'
test('the manual pages are set without a warning, and show the examples as they are', { skip: noGroff }, () => {
  const set = (text: string) =>
    spawnSync('groff', ['-man', '-Kutf8', '-Tutf8', '-ww', '-P-c'], { input: text, encoding: 'utf8' })
  for (const { file, text } of pages) {
    const { stderr } = set(text)
    // A URL that is wider than the page is nobody's mistake.
    assert.doesNotMatch(stderr.replace(/.*(can't|cannot) (break|adjust) line.*\n?/g, ''), /\S/, file)
  }
  const { stdout } = set(pages.find(({ file }) => file === 'tidings-sign.1')!.text)
  assert.match(stdout, /tidings sign --body @query\.json \| curl -H @- --data-binary @query\.json \\\n/)
})
