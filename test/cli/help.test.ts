import assert from 'node:assert/strict'
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
