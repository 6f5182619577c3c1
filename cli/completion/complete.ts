import type { Argument, CommandUnknownOpts, Option } from '@commander-js/extra-typings'
import { topics } from '../help/topics.ts'
import { neutralise } from '../output/neutralise.ts'
import { type Candidate, FILES, namedValues, type Values } from './values.ts'

/** The state of a line: its command, and what the command expects at the cursor. */
interface Position {
  command: CommandUnknownOpts
  /** The number of arguments before the cursor. */
  argumentsBefore: number
  /** The option whose value is expected. */
  option: Option | undefined
  /** After `--` there are no options. */
  optionsEnded: boolean
}

/**
 * The completions at the end of a line. `words` are the words after the program's name; the last one, perhaps empty,
 * ends at the cursor. Returns the lines for a shell's script: a candidate with its description on each, or `:files`.
 */
export const complete = async (root: CommandUnknownOpts, words: string[]): Promise<string> => {
  const line = joinEquals(words)
  if (line[0] === 'help' && line.length > 1) return helpOf(root, line.slice(1))
  const before = line.slice(0, -1)
  const current = line.at(-1) ?? ''
  const position = walk(root, before)
  const [, assigned, beginning = ''] = /^(--[\w-]+)=(.*)$/s.exec(current) ?? []
  if (assigned !== undefined && position.option === undefined) {
    const option = findOption(position.command, assigned)
    return option ? print(await optionValues(option, beginning, position, before), beginning, `${assigned}=`) : ''
  }
  if (position.option) return print(await optionValues(position.option, current, position, before), current)
  if (current.startsWith('-') && !position.optionsEnded) return print(options(position.command), current)
  const { commands } = position.command
  if (commands.length > 0 && position.argumentsBefore === 0) {
    const helps = position.command === root ? [{ value: 'help', text: 'show how a command is used, or a topic' }] : []
    return print([...commandsBelow(position.command), ...helps], current)
  }
  const expected = argumentAt(position)
  return expected ? print(await argumentValues(expected, position, before), current) : ''
}

const commandsBelow = (command: CommandUnknownOpts): Candidate[] =>
  command
    .createHelp()
    .visibleCommands(command)
    .map(each => ({ value: each.name(), text: each.summary() || each.description() }))

/** After `help`: a command or what is below it, or a topic. */
const helpOf = (root: CommandUnknownOpts, line: string[]): string => {
  const { command, argumentsBefore } = walk(root, line.slice(0, -1))
  if (argumentsBefore > 0) return ''
  const others = command === root ? topics.map(({ name }) => ({ value: name, text: 'a topic' })) : []
  return print([...commandsBelow(command), ...others], line.at(-1) ?? '')
}

/** Bash passes `--output=json` as three words. */
const joinEquals = (words: string[]): string[] => {
  const joined: string[] = []
  for (const word of words) {
    if (word === '=' && /^--[\w-]+$/.test(joined.at(-1) ?? '')) {
      // The option's value is then a separate word, as without the equals sign.
      joined.push('=')
    } else if (joined.at(-1) === '=') joined[joined.length - 1] = word
    else joined.push(word)
  }
  if (joined.at(-1) === '=') joined[joined.length - 1] = ''
  return joined
}

const walk = (root: CommandUnknownOpts, before: string[]): Position => {
  const position: Position = { command: root, argumentsBefore: 0, option: undefined, optionsEnded: false }
  for (const word of before) {
    if (position.option) {
      position.option = undefined
    } else if (word === '--') {
      position.optionsEnded = true
    } else if (word.startsWith('-') && !position.optionsEnded) {
      const option = word.includes('=') ? undefined : findOption(position.command, word)
      if (option?.required) position.option = option
    } else {
      const child = position.command.commands.find(each => each.name() === word || each.aliases().includes(word))
      if (child && position.argumentsBefore === 0) position.command = child
      else position.argumentsBefore += 1
    }
  }
  return position
}

const withParents = (command: CommandUnknownOpts): CommandUnknownOpts[] =>
  command.parent ? [command, ...withParents(command.parent)] : [command]

const findOption = (command: CommandUnknownOpts, flag: string): Option | undefined =>
  withParents(command)
    .flatMap(each => each.options)
    .find(option => option.long === flag || option.short === flag) as Option | undefined

const options = (command: CommandUnknownOpts): Candidate[] => [
  ...withParents(command).flatMap(each =>
    each.options.flatMap(option =>
      option.hidden || !option.long ? [] : [{ value: option.long, text: option.description }],
    ),
  ),
  { value: '--help', text: 'show how it is used' },
]

const argumentAt = ({ command, argumentsBefore }: Position): Argument | undefined => {
  const { registeredArguments } = command
  const last = registeredArguments.at(-1)
  return (registeredArguments[argumentsBefore] ?? (last?.variadic ? last : undefined)) as Argument | undefined
}

const nounOf = (command: CommandUnknownOpts): string => withParents(command).at(-2)?.name() ?? ''

const optionValues = async (
  option: Option,
  current: string,
  { command }: Position,
  before: string[],
): Promise<Values> => {
  if (option.argChoices) return option.argChoices.map(value => ({ value, text: '' }))
  const [, name = ''] = /<([\w-]+)>/.exec(option.flags) ?? []
  const values = await namedValues({ name, option: option.long ?? '', noun: nounOf(command), before })
  if (values === FILES || !/^(ids|types|list|statuses|names)$/.test(name)) return values
  // Another value of a list: the values before the last comma stay, and are not offered again.
  const given = current.split(',').slice(0, -1)
  const prefix = given.map(value => `${value},`).join('')
  return values
    .filter(({ value }) => !given.includes(value))
    .map(({ value, text }) => ({ value: prefix + value, text }))
}

const argumentValues = async (argument: Argument, { command }: Position, before: string[]): Promise<Values> =>
  argument.argChoices
    ? argument.argChoices.map(value => ({ value, text: '' }))
    : namedValues({ name: argument.name(), option: '', noun: nounOf(command), before })

const print = (values: Values, current: string, prefix = ''): string => {
  if (values === FILES) return `${FILES}\n`
  return values
    .filter(({ value }) => value.startsWith(current))
    .map(({ value, text }) => `${neutralise(prefix + value)}\t${neutralise(text)}\n`)
    .join('')
}
