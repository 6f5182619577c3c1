import { Command, CommanderError, type CommandUnknownOpts, Help, Option } from '@commander-js/extra-typings'
import pc from 'picocolors'
import { CliError, exitCodes, Finished, usageError } from './errors.ts'
import { neutralise, plain, printable, safeJson } from './output/neutralise.ts'
import { columnsOf, forms, Output, type OutputFlags, useColour } from './output/output.ts'
import { fold } from './output/wrap.ts'

/** A command of the top level. `load` is called only when it is the one used, so that none costs the others time. */
interface Entry {
  name: string
  summary: string
  group: string
  load: () => Promise<CommandUnknownOpts>
}

const webhooks = 'Webhooks and deliveries:'
const receivers = 'For receivers:'
const data = 'Data:'
const connection = 'Connection:'
const operation = 'For operators:'

const entries: Entry[] = [
  {
    name: 'webhooks',
    summary: 'create, list, change, enable, disable, ping and recover webhooks',
    group: webhooks,
    load: async () => (await import('./commands/webhooks.ts')).webhooksCommand(),
  },
  {
    name: 'deliveries',
    summary: 'list and watch deliveries, and show why one did what it did',
    group: webhooks,
    load: async () => (await import('./commands/deliveries.ts')).deliveriesCommand(),
  },
  {
    name: 'events',
    summary: 'list events, and show who was told of one',
    group: webhooks,
    load: async () => (await import('./commands/events.ts')).eventsCommand(),
  },
  {
    name: 'dashboard',
    summary: 'see webhooks, deliveries and their stories on one screen, and act on them',
    group: webhooks,
    load: async () => (await import('./commands/dashboard.ts')).dashboardCommand(),
  },
  {
    name: 'listen',
    summary: 'receive deliveries on this machine, verify, forward and rehearse failures',
    group: receivers,
    load: async () => (await import('./commands/listen.ts')).listenCommand(),
  },
  {
    name: 'verify',
    summary: 'check a delivery token and show every check',
    group: receivers,
    load: async () => (await import('./commands/verify.ts')).verifyCommand(),
  },
  {
    name: 'organisations',
    summary: 'list, create and rename organisations',
    group: data,
    load: async () => (await import('./commands/organisations.ts')).organisationsCommand(),
  },
  {
    name: 'projects',
    summary: 'list, create and change projects',
    group: data,
    load: async () => (await import('./commands/projects.ts')).projectsCommand(),
  },
  {
    name: 'users',
    summary: 'list, create and rename users',
    group: data,
    load: async () => (await import('./commands/users.ts')).usersCommand(),
  },
  {
    name: 'reports',
    summary: 'list, submit and approve project reports',
    group: data,
    load: async () => (await import('./commands/reports.ts')).reportsCommand(),
  },
  {
    name: 'query',
    summary: 'query any resource with a Mango selector',
    group: data,
    load: async () => (await import('./commands/query.ts')).queryCommand(),
  },
  {
    name: 'graphql',
    summary: 'send a GraphQL document',
    group: data,
    load: async () => (await import('./commands/graphql.ts')).graphqlCommand(),
  },
  {
    name: 'sign',
    summary: 'print the headers of a signed request, for curl',
    group: data,
    load: async () => (await import('./commands/sign.ts')).signCommand(),
  },
  {
    name: 'login',
    summary: 'save a server and an access token as a profile',
    group: connection,
    load: async () => (await import('./commands/login.ts')).loginCommand(),
  },
  {
    name: 'profiles',
    summary: 'list, choose and remove saved profiles',
    group: connection,
    load: async () => (await import('./commands/profiles.ts')).profilesCommand(),
  },
  {
    name: 'whoami',
    summary: 'show the access token in use and what it may do',
    group: connection,
    load: async () => (await import('./commands/whoami.ts')).whoamiCommand(),
  },
  {
    name: 'tokens',
    summary: 'list, create and revoke access tokens',
    group: connection,
    load: async () => (await import('./commands/tokens.ts')).tokensCommand(),
  },
  {
    name: 'config',
    summary: 'show each setting and where it comes from',
    group: connection,
    load: async () => (await import('./commands/config.ts')).configCommand(),
  },
  {
    name: 'doctor',
    summary: 'find out why the server, or a webhook, is not reached',
    group: connection,
    load: async () => (await import('./commands/doctor.ts')).doctorCommand(),
  },
  {
    name: 'completion',
    summary: 'print the script that makes a shell complete commands, ids and event types',
    group: connection,
    load: async () => (await import('./commands/completion.ts')).completionCommand(),
  },
  {
    name: 'demo',
    summary: 'see the whole job end to end in a few seconds',
    group: operation,
    load: async () => (await import('./commands/demo.ts')).demoCommand(),
  },
  {
    name: 'server',
    summary: 'start and maintain a server',
    group: operation,
    load: async () => (await import('./commands/server.ts')).serverCommand(),
  },
]

/**
 * Runs the command line with the arguments after the program's name, and answers with the exit code. Everything is
 * printed by then; the caller sets `process.exitCode` and lets the process end by itself, so that no output is lost.
 */
export const run = async (argv: string[]): Promise<number> => {
  // A reader that stops reading, such as `head`, has what it wanted.
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
    const helpAsked = operands[0] === 'help'
    const used = operands[helpAsked ? 1 : 0]
    await addCommands(program as unknown as CommandUnknownOpts, name => name === used)
    const line = helpAsked ? [...argv.toSpliced(argv.indexOf('help'), 1), '--help'] : argv
    await program.parseAsync(line.length === 0 ? ['--help'] : line, { from: 'user' })
    return exitCodes.done
  } catch (error) {
    return fail(error, program as unknown as CommandUnknownOpts, argv)
  }
}

/** The program with every command loaded, for what looks at all of them. */
export const wholeProgram = async (): Promise<CommandUnknownOpts> => {
  const program = createProgram([]) as unknown as CommandUnknownOpts
  await addCommands(program, () => true)
  return program
}

/** Adds every command of the top level, but only what is needed of those that are not the one used. */
const addCommands = async (program: CommandUnknownOpts, isUsed: (name: string) => boolean): Promise<void> => {
  for (const entry of entries) {
    const command: CommandUnknownOpts = isUsed(entry.name) ? await entry.load() : new Command(entry.name)
    program.addCommand(command.summary(entry.summary).helpGroup(entry.group))
    inheritSettings(command, program)
  }
}

/**
 * What a shell's completion script asks: `complete [--empty] -- WORD…`. It has nobody to tell an error to, and nothing
 * to wait for once it has answered.
 */
const completeLine = async (argv: string[]): Promise<number> => {
  try {
    const words = argv.slice(1)
    const endsEmpty = words[0] === '--empty'
    if (endsEmpty) words.shift()
    // A script that PowerShell starts, such as npm's for Windows, is not handed the sign itself.
    if (words[0] === '--') words.shift()
    if (endsEmpty) words.push('')
    const program = createProgram(argv) as unknown as CommandUnknownOpts
    // Commander would find fault with a line that is not finished.
    const used = words.slice(0, -1).find(word => entries.some(({ name }) => name === word))
    await addCommands(program, name => name === used)
    const { complete } = await import('./completion/complete.ts')
    process.stdout.write(await complete(program, words), () => process.exit(exitCodes.done))
  } catch {
    process.exit(exitCodes.done)
  }
  return exitCodes.done
}

const createProgram = (argv: string[]) =>
  new Command('tidings')
    .description('Signed event notifications: set up webhooks, watch deliveries, and find out why one did what it did.')
    .option('-V, --version', 'print the version')
    .helpOption('-h, --help', 'show how it is used')
    .optionsGroup('Output options:')
    .addOption(
      new Option('-o, --output <form>', 'form of the data; table is for people, the others are for programs').choices(
        forms,
      ),
    )
    .option('--color', 'colour, even where nobody watches or NO_COLOR is set')
    .option('--no-color', 'no colour')
    .option('-q, --quiet', 'no messages besides errors')
    .option('-v, --verbose', 'tell what happens underneath')
    .optionsGroup('Connection options:')
    .option('-p, --profile <name>', 'saved profile to use [TIDINGS_PROFILE]')
    .option('--url <url>', 'base URL of the server [TIDINGS_URL]')
    .option('--api-key <key>', 'API key of the access token [TIDINGS_API_KEY]')
    .option('--api-secret <->', '- to read its secret from standard input [TIDINGS_API_SECRET]')
    .option('--api-secret-file <path>', 'file that holds its secret [TIDINGS_API_SECRET_FILE]')
    .helpCommand(false)
    .configureHelp({
      subcommandTerm: command => command.name(),
      formatHelp: commandsFirst,
      styleTitle: pc.createColors(true).bold,
    })
    .configureOutput({ outputError: () => {}, getOutHasColors: () => useColour(askedColour(argv), process.stdout) })
    .exitOverride()
    .addHelpText(
      'after',
      `
Data goes to stdout, messages to stderr. Data is JSON without a terminal.
A flag counts before the environment, and the environment before a profile.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not authenticated or
not permitted, 5 server not reached, 6 verification failed.

Begin with:
  $ tidings demo                     see the whole job end to end
  $ tidings listen --register        receive events on this machine
  $ tidings webhooks create --help   set up an endpoint of your own`,
    )
    .addHelpText('afterAll', ({ command }) =>
      command.parent ? '\nBesides, every command takes --output, --profile and more: tidings --help' : '',
    )

/** A newcomer looks for what can be done before how to fine-tune it. */
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

/** Commander hands settings down only to commands that it creates itself; these were made on their own. */
const inheritSettings = (command: CommandUnknownOpts, parent: CommandUnknownOpts): void => {
  command.copyInheritedSettings(parent)
  for (const child of command.commands) inheritSettings(child, command)
}

let outputBroken = false

/** A command that has something to put away first does so as when it is told to end; the others just end. */
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
    // Help has been printed already: because it was asked for, or because a noun came without its verb.
    if (error.exitCode === 0) return exitCodes.done
    if (error.code === 'commander.help') return exitCodes.usage
    return report(usageError(sentence(error.message), `See how it is used with: ${pathOf(program, argv)} --help`), argv)
  }
  if (error instanceof CliError) return report(error, argv)
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

/** Errors are JSON where a form for programs was asked for by name; stdout stays empty either way. */
const report = ({ code, message, hint, exitCode }: CliError, argv: string[]): number => {
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

/** Read from the line itself, since the error may be that the line could not be parsed. */
const askedForm = (argv: string[]): string | undefined => {
  const at = argv.findLastIndex(arg => /^(-o|--output)(=|$)/.test(arg))
  const arg = argv[at]
  return arg?.includes('=') ? arg.slice(arg.indexOf('=') + 1) : argv[at + 1]
}

const askedColour = (argv: string[]): OutputFlags['color'] => {
  const last = argv.findLast(arg => arg === '--color' || arg === '--no-color')
  return last === undefined ? undefined : last === '--color'
}

/** The commands named on the line, as far as they exist: `tidings webhooks create`. */
const pathOf = (program: CommandUnknownOpts, argv: string[]): string => {
  let command = program
  let path = program.name()
  for (const arg of argv) {
    const child = command.commands.find(each => each.name() === arg)
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
