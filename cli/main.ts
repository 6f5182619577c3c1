import { Command, CommanderError, type CommandUnknownOpts, Help, Option } from '@commander-js/extra-typings'
import pc from 'picocolors'
import { addCommands, entries } from './commands/index.ts'
import { CliError, type ExitCode, exitCodes, Finished, fileFault, isFileFault, usageError } from './errors.ts'
import { nearTo } from './output/near.ts'
import { neutralise, plain, printable, safeJson } from './output/neutralise.ts'
import { columnsOf, forms, Output, type OutputFlags, useColour } from './output/output.ts'
import { asStarted } from './output/program.ts'
import { fitHelp, fold, HELP_WIDTH } from './output/wrap.ts'

/**
 * Runs the command line with the arguments after the program's name, and resolves to the exit code. Everything is
 * printed by then. The caller sets `process.exitCode` and lets the process end by itself, so that no output is lost.
 * Never rejects.
 */
export const run = async (argv: string[]): Promise<number> => {
  // A reader that closes the pipe, such as `head`, has what it wanted.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', endOnBrokenOutput)
  if (argv[0] === 'complete') return completeLine(argv)
  const program = createProgram(argv)
  try {
    const { operands } = program.parseOptions(argv)
    if (program.opts().version) {
      const { version } = await import('../shared/version.ts')
      process.stdout.write(`${version}\n`)
      return exitCodes.done
    }
    if (operands[0] === 'help') return await help(program as unknown as CommandUnknownOpts, operands.slice(1), argv)
    const [used] = operands
    await addCommands(program as unknown as CommandUnknownOpts, name => name === used)
    await program.parseAsync(argv.length === 0 ? ['--help'] : argv, { from: 'user' })
    return exitCodes.done
  } catch (error) {
    return fail(error, program as unknown as CommandUnknownOpts, argv)
  }
}

/** `tidings help` for everything, a command or a topic, or the whole tree as JSON. */
const help = async (program: CommandUnknownOpts, words: string[], argv: string[]): Promise<ExitCode> => {
  const { checkPath, topicNamed, treeAsJson } = await import('./help/help.ts')
  const asJson = argv.includes('--json') || askedForm(argv) === 'json'
  const topic = asJson ? undefined : topicNamed(words[0])
  if (topic !== undefined) {
    process.stdout.write(fitHelp(topic, columnsOf(process.stdout)))
    return exitCodes.done
  }
  await addCommands(program, name => asJson || name === words[0])
  if (asJson) {
    process.stdout.write(treeAsJson(program))
    return exitCodes.done
  }
  checkPath(program, words)
  await program.parseAsync([...words, '--help'], { from: 'user' })
  return exitCodes.done
}

/** The program with every command loaded, for code that inspects all of them. */
export const wholeProgram = async (): Promise<CommandUnknownOpts> => {
  const program = createProgram([]) as unknown as CommandUnknownOpts
  await addCommands(program, () => true)
  return program
}

/**
 * Answers a shell's completion script: `complete [--empty] -- WORD…`. It reports no errors, and exits right after the
 * answer.
 */
const completeLine = async (argv: string[]): Promise<number> => {
  try {
    const words = argv.slice(1)
    const endsEmpty = words[0] === '--empty'
    if (endsEmpty) words.shift()
    // A script started by PowerShell, such as npm's for Windows, does not receive the `--` itself.
    if (words[0] === '--') words.shift()
    if (endsEmpty) words.push('')
    const program = createProgram(argv) as unknown as CommandUnknownOpts
    // Commander would reject an unfinished line.
    const used = words.slice(0, -1).find(word => entries.some(({ name, alias }) => name === word || alias === word))
    await addCommands(program, name => name === used)
    const { complete } = await import('./completion/complete.ts')
    process.stdout.write(await complete(program, words), () => process.exit(exitCodes.done))
  } catch {
    process.exit(exitCodes.done)
  }
  return exitCodes.done
}

const AFTER_COMMANDS = `
Data goes to stdout, messages to stderr. Data is JSON without a terminal.
A flag counts before the environment, and the environment before a profile.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not authenticated or
not permitted, 5 server not reached, 6 verification failed.

More about: tidings help environment|exit-codes|selectors|signing
All of it as JSON, for programs: tidings help --json

Begin with:
  $ tidings demo                     see the whole job end to end
  $ tidings listen --register        receive events on this machine
  $ tidings webhooks create --help   set up an endpoint of your own`

const createProgram = (argv: string[]) =>
  new Command('tidings')
    .description(
      'Signed event notifications: set up webhooks, watch deliveries, and find out why one did or did not arrive.',
    )
    .option('-V, --version', 'print the version')
    .helpOption('-h, --help', 'show how it is used')
    .optionsGroup('Output options:')
    .addOption(
      new Option('-o, --output <form>', 'form of the data; table is for people, the others are for programs').choices(
        forms,
      ),
    )
    .option('--color', 'colour, even without a terminal or with NO_COLOR')
    .option('--no-color', 'no colour')
    .option('-q, --quiet', 'no messages except errors')
    .option('-v, --verbose', 'show what happens underneath')
    .optionsGroup('Connection options:')
    .option('-p, --profile <name>', 'saved profile to use [TIDINGS_PROFILE]')
    .option('--url <url>', 'base URL of the server [TIDINGS_URL]')
    .option('--api-key <key>', 'API key of the access token [TIDINGS_API_KEY]')
    .option('--api-secret <->', '- to read its secret from standard input [TIDINGS_API_SECRET]')
    .option('--api-secret-file <path>', 'file that holds its secret [TIDINGS_API_SECRET_FILE]')
    .option('--ca-file <path>', 'certificates (PEM) of additional authorities to trust [TIDINGS_CA_FILE]')
    .hook('preAction', setUpNetworkFor)
    .helpCommand(false)
    .configureHelp({
      subcommandTerm: command => command.name(),
      formatHelp: commandsFirst,
      formatItem: itemThatFits,
      minWidthToWrap: LEAST_BESIDE,
      styleTitle: pc.createColors(true).bold,
    })
    .configureOutput({
      outputError: () => {},
      writeOut: text => process.stdout.write(fitHelp(asStarted(text), columnsOf(process.stdout))),
      getOutHasColors: () => useColour(askedColour(argv), process.stdout),
    })
    .exitOverride()
    .addHelpText('after', AFTER_COMMANDS)
    .addHelpText('afterAll', ({ command }) =>
      command.parent ? '\nEvery command also takes --output, --profile and more: tidings --help' : '',
    )

/** Loaded only if there is something to set up. The server reads the same variables for its deliveries. */
const setUpNetworkFor = async (program: CommandUnknownOpts, action: CommandUnknownOpts): Promise<void> => {
  const { caFile } = program.opts() as { caFile?: string }
  const isNamed = Object.keys(process.env).some(name => /^(TIDINGS_CA_FILE|(https?|all)_proxy)$/i.test(name))
  const isOwn = [action.name(), action.parent?.name(), action.parent?.parent?.name()].some(name =>
    ['server', 'demo', 'completion'].includes(name ?? ''),
  )
  if (isOwn || !(isNamed || caFile !== undefined)) return
  const { setUpNetwork } = await import('./connection/network.ts')
  setUpNetwork(caFile, process.env)
}

/** Commands come before options, because newcomers look for commands first. */
const commandsFirst = (command: CommandUnknownOpts, helper: Help): string => {
  const sections = Help.prototype.formatHelp.call(helper, command, helper).trimEnd().split('\n\n')
  const optionsAt = sections.findIndex(section => /^\S*Options:/.test(section))
  const commandsAt = sections.findIndex(
    (section, index) => index > optionsAt && !/^\S*(\w+ options|Options):/.test(section),
  )
  if (optionsAt === -1 || commandsAt === -1) return `${sections.join('\n\n')}\n`
  const options = sections.slice(optionsAt, commandsAt)
  return `${[...sections.slice(0, optionsAt), ...sections.slice(commandsAt), ...options].join('\n\n')}\n`
}

/** A description stands beside its term where it has so many columns, else below it. */
const LEAST_BESIDE = 28

function itemThatFits(this: Help, term: string, termWidth: number, description: string, helper: Help): string {
  const columns = helper.helpWidth ?? HELP_WIDTH
  const besides = columns - termWidth - 4
  if (besides >= LEAST_BESIDE || !description) {
    return Help.prototype.formatItem.call(this, term, termWidth, description, helper)
  }
  const below = `\n${' '.repeat(6)}`
  return `  ${term}${below}${helper.boxWrap(description, columns - 6).replaceAll('\n', below)}`
}

let outputBroken = false

/** A command with cleanup runs it as for a signal; the others just end. */
const endOnBrokenOutput = (error: NodeJS.ErrnoException): void => {
  if (outputBroken) return
  outputBroken = true
  // A closed terminal answers EIO. Anything else, such as a full disk, loses data.
  const isClosed = error.code === 'EPIPE' || error.code === 'EIO'
  if (!isClosed) process.stderr.write(`Error: The output cannot be written: ${error.message}.\n`)
  process.exitCode = isClosed ? exitCodes.done : exitCodes.failed
  if (!process.emit('SIGTERM', 'SIGTERM')) process.exit()
}

const fail = (error: unknown, program: CommandUnknownOpts, argv: string[]): number => {
  if (error instanceof Finished) return exitCodes.done
  if (error instanceof CommanderError) {
    // The help was already printed, on request or because a noun had no verb.
    if (error.exitCode === 0) return exitCodes.done
    if (error.code === 'commander.help') return exitCodes.usage
    const help = `See how it is used with: ${pathOf(program, argv)} --help`
    return report(usageError(sentence(error.message), `${nearestChoice(error.message)}${help}`), argv)
  }
  if (error instanceof CliError) return report(error, argv)
  if (isFileFault(error)) {
    const failed = WRITES.has(error.syscall ?? '') ? 'written' : 'read'
    const message = `${neutralise(error.path)} cannot be ${failed}: ${fileFault(error)}.`
    const hint = 'Check permissions and free space, or name another place.'
    return report(new CliError(exitCodes.failed, 'FILE', message, hint), argv)
  }
  const unexpected = error instanceof Error ? error : new Error(String(error))
  if (argv.includes('--verbose') || argv.includes('-v'))
    process.stderr.write(`${printable(String(unexpected.stack))}\n`)
  return report(
    new CliError(
      exitCodes.failed,
      'UNEXPECTED',
      neutralise(unexpected.message),
      'This should not happen. --verbose shows where it did.',
    ),
    argv,
  )
}

/** What was meant by a value that is none of those allowed. */
const nearestChoice = (message: string): string => {
  const [, given, choices] = /'([^']*)' is invalid.*Allowed choices are (.*)\.$/s.exec(message) ?? []
  const [near] = given && choices ? nearTo(choices.split(', '), given) : []
  return near === undefined ? '' : `Did you mean ${near}? `
}

const WRITES = new Set(['mkdir', 'mkdtemp', 'rename', 'write', 'unlink', 'chmod'])

/** Errors are JSON if a form for programs was requested explicitly; stdout stays empty. */
const report = (error: CliError, argv: string[]): number => {
  const { code, exitCode } = error
  const message = asStarted(error.message)
  const hint = error.hint && asStarted(error.hint)
  const form = askedForm(argv)
  if (form === 'json' || form === 'ndjson') {
    process.stderr.write(`${safeJson({ error: { code, message, hint: hint ?? null } })}\n`)
    return exitCode
  }
  const { messageColours: colours } = new Output({ color: askedColour(argv) })
  const text = `${colours.red('Error:')} ${plain(message)}\n${hint ? `${plain(hint)}\n` : ''}`
  process.stderr.write(fold(text, columnsOf(process.stderr)))
  return exitCode
}

/** Read from the arguments themselves, because the error may be that they could not be parsed. */
const askedForm = (argv: string[]): string | undefined => {
  const at = argv.findLastIndex(arg => /^(-o|--output)(=|$)/.test(arg))
  const arg = argv[at]
  return arg?.includes('=') ? arg.slice(arg.indexOf('=') + 1) : argv[at + 1]
}

const askedColour = (argv: string[]): OutputFlags['color'] => {
  const last = argv.findLast(arg => arg === '--color' || arg === '--no-color')
  return last === undefined ? undefined : last === '--color'
}

/** The existing commands named by the arguments: `tidings webhooks create`. */
const pathOf = (program: CommandUnknownOpts, argv: string[]): string => {
  let command = program
  let path = program.name()
  for (const arg of argv) {
    const child = command.commands.find(each => each.name() === arg || each.aliases().includes(arg))
    if (!child) continue
    command = child
    path += ` ${child.name()}`
  }
  return path
}

const sentence = (message: string): string => {
  const text = message.replace(/^error: /, '').replace(/\n/g, ' ')
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?)]$/.test(text) ? '' : '.'}`
}
