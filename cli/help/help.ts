import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { usageError } from '../errors.ts'
import { nearTo } from '../output/near.ts'
import { safeJson } from '../output/neutralise.ts'
import { asStarted } from '../output/program.ts'
import { topics } from './topics.ts'
import { describeProgram, pathOf } from './tree.ts'

/** The text of a topic of `tidings help`; undefined for an unknown name. */
export const topicNamed = (name: string | undefined): string | undefined => {
  const topic = topics.find(each => each.name === name)
  return topic && `${asStarted(topic.text)}\n`
}

/** The tree of all commands, for programs. */
export const treeAsJson = (program: CommandUnknownOpts): string => `${safeJson(describeProgram(program), 2)}\n`

/** Throws a CliError, exit code 2, if the words after `help` name no command. */
export const checkPath = (program: CommandUnknownOpts, words: string[]): void => {
  let command = program
  for (const word of words) {
    const next = command.commands.find(each => each.name() === word || each.aliases().includes(word))
    if (!next) throw unknown(word, command)
    command = next
  }
}

const unknown = (word: string, command: CommandUnknownOpts) => {
  const names = command.commands.map(each => each.name())
  const all = command.parent ? names : [...names, ...topics.map(({ name }) => name)]
  const near = nearTo(all, word)
  return usageError(
    `${command.parent ? `${pathOf(command)} has no` : 'There is no command or topic'} ${JSON.stringify(word)}.`,
    near.length > 0 ? `Did you mean ${near.join(' or ')}?` : `There are ${all.join(', ') || 'none below it'}.`,
  )
}
