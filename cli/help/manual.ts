import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { topics } from './topics.ts'
import { type DescribedCommand, describeCommand, textAfter } from './tree.ts'

/** A manual page in man(7) format, and its file. */
export interface ManualPage {
  file: string
  text: string
}

/** Pages for the program, each noun with its verbs, and each topic, from the texts of the help. */
export const manualPages = (program: CommandUnknownOpts, version: string): ManualPage[] => {
  const heading = (title: string, section: number): string =>
    `.TH ${title.toUpperCase()} ${section} "" "Tidings ${version}" "Tidings"`
  const whole = describeCommand(program)
  const nouns = whole.commands
  return [
    {
      file: 'tidings.1',
      text: join([
        heading('tidings', 1),
        name('tidings', whole.description),
        ...about(whole),
        '.SH COMMANDS',
        ...nouns.map(({ command, summary }) => item(`${command.replace(' ', '-')}(1)`, summary)),
        '.SH SEE ALSO',
        ...topics.map(topic => item(`tidings-${topic.name}(7)`, topic.summary)),
        '.SH NOTES',
        asItIs(textAfter(program)),
      ]),
    },
    ...nouns.map(noun => ({
      file: `${noun.command.replace(' ', '-')}.1`,
      text: join([
        heading(noun.command.replace(' ', '-'), 1),
        name(noun.command.replace(' ', '-'), noun.summary),
        ...about(noun),
        ...below(noun).flatMap(verb => [`.SH ${verb.command.toUpperCase()}`, ...about(verb, '.SS')]),
        '.SH SEE ALSO',
        'tidings(1), tidings\\-environment(7), tidings\\-exit\\-codes(7)',
      ]),
    })),
    ...topics.map(topic => ({
      file: `tidings-${topic.name}.7`,
      text: join([
        heading(`tidings-${topic.name}`, 7),
        name(`tidings-${topic.name}`, topic.summary),
        '.SH DESCRIPTION',
        asItIs(topic.text),
      ]),
    })),
  ]
}

const below = (command: DescribedCommand): DescribedCommand[] =>
  command.commands.flatMap(child => [child, ...below(child)])

const about = (command: DescribedCommand, level = '.SH'): string[] => [
  `${level} SYNOPSIS`,
  `.B ${plain(command.usage)}`,
  `${level} DESCRIPTION`,
  plain(command.description),
  ...(command.arguments.length + command.options.length === 0 ? [] : [`${level} OPTIONS`]),
  ...command.arguments.map(argument => item(`<${argument.name}>`, argument.description)),
  ...command.options.map(option => item(option.flags, `${option.description}${choicesOf(option.choices)}`)),
  ...(command.examples.length === 0 ? [] : [`${level} EXAMPLES`]),
  ...command.examples.flatMap(({ purpose, line }) => ['.PP', plain(`${purpose}:`), asItIs(`    ${line}`)]),
]

const choicesOf = (choices: string[]): string => (choices.length === 0 ? '' : ` (${choices.join(', ')})`)

const name = (title: string, summary: string): string => `.SH NAME\n${plain(title)} \\- ${plain(summary)}`
const item = (term: string, text: string): string => `.TP\n.B ${plain(term)}\n${plain(text)}`
const asItIs = (text: string): string => `.nf\n${text.split('\n').map(plain).join('\n')}\n.fi`
const join = (parts: string[]): string => `${parts.join('\n')}\n`

/** Escapes text so that nothing is markup and hyphens can be copied. */
const plain = (text: string): string =>
  text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replace(/^(?=[.'])/, '\\&')
