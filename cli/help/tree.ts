import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { exitCodes } from '../errors.ts'
import { topics } from './topics.ts'

/** A command, described for programs. */
export interface DescribedCommand {
  /** The typed form: `tidings webhooks create`. */
  command: string
  summary: string
  description: string
  usage: string
  arguments: { name: string; required: boolean; variadic: boolean; description: string; choices: string[] }[]
  options: DescribedOption[]
  examples: { purpose: string; line: string }[]
  commands: DescribedCommand[]
}

interface DescribedOption {
  flags: string
  long: string | null
  short: string | null
  description: string
  /** Whether it takes a value. */
  takesValue: boolean
  mandatory: boolean
  default: unknown
  choices: string[]
}

/** The whole tree, with exit codes and topics. */
export const describeProgram = (program: CommandUnknownOpts) => ({
  ...describeCommand(program),
  exitCodes,
  topics: topics.map(({ name, summary }) => ({ name, summary })),
})

export const describeCommand = (command: CommandUnknownOpts): DescribedCommand => ({
  command: pathOf(command),
  summary: command.summary() || command.description(),
  description: command.description() || command.summary(),
  usage: `${pathOf(command)} ${command.usage()}`,
  arguments: command.registeredArguments.map(argument => ({
    name: argument.name(),
    required: argument.required,
    variadic: argument.variadic,
    description: argument.description,
    choices: [...(argument.argChoices ?? [])],
  })),
  options: command.options.map(option => ({
    flags: option.flags,
    long: option.long ?? null,
    short: option.short ?? null,
    description: option.description,
    takesValue: option.required || option.optional,
    mandatory: option.mandatory,
    default: option.defaultValue ?? null,
    choices: [...(option.argChoices ?? [])],
  })),
  examples: examplesIn(textAfter(command)),
  commands: command.commands.map(describeCommand),
})

export const pathOf = (command: CommandUnknownOpts): string =>
  command.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name()

/** The text of a command's help after its options. */
export const textAfter = (command: CommandUnknownOpts): string => {
  let text = ''
  const write = (more: string): void => {
    text += more
  }
  // A command is an EventEmitter, although its type does not say so.
  ;(command as unknown as NodeJS.EventEmitter).emit('afterHelp', { error: false, command, write })
  return text
}

/** The examples of a help text: the purpose of each, and the lines to type, without the prompt. */
export const examplesIn = (text: string): { purpose: string; line: string }[] =>
  [...text.matchAll(/^ {2}# (.+)\n((?: {2}\$ .+\n?(?: {4}.+\n?)*)+)/gm)].map(([, purpose = '', lines = '']) => ({
    purpose,
    line: lines.trimEnd().replace(/^ {2}(\$ )?/gm, ''),
  }))
