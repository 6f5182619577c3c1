import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { wholeProgram } from '../../cli/main.ts'
import { displayWidth } from '../../cli/output/table.ts'

// Every command that the program itself has, so that none can be forgotten.

const program = await wholeProgram()
const withChildren = (command: CommandUnknownOpts): CommandUnknownOpts[] => [
  command,
  ...command.commands.flatMap(withChildren),
]
const pathOf = (command: CommandUnknownOpts): string =>
  command.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name()
const helpOf = (command: CommandUnknownOpts): string => {
  let help = ''
  command.configureOutput({
    writeOut: text => {
      help += text
    },
    getOutHelpWidth: () => 80,
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
    const wide = help.split('\n').filter(line => displayWidth(line) > 80)
    assert.deepEqual(wide, [])
    for (const option of command.options) assert.ok(option.description, `${option.flags} is not described`)
    for (const argument of command.registeredArguments) assert.ok(argument.description, `<${argument.name()}> is not`)
    // A sentence about each, beside the others: the summary is what the level above lists.
    if (command !== program) assert.ok(command.summary() || command.description().length < 100, 'no summary')
  })
}

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
