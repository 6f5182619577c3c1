import { Command, type CommandUnknownOpts } from '@commander-js/extra-typings'

/** A top-level command. `load` is called only if the command is used, so that it costs the others no time. */
interface Entry {
  name: string
  alias?: string
  summary: string
  group: string
  load: () => Promise<CommandUnknownOpts>
}

const webhooks = 'Webhooks and deliveries:'
const receivers = 'For receivers:'
const data = 'Data:'
const connection = 'Connection:'
const operation = 'For operators:'

export const entries: Entry[] = [
  {
    name: 'webhooks',
    summary: 'create, list, change, enable, disable, delete, ping and recover webhooks',
    group: webhooks,
    load: async () => (await import('./webhooks.ts')).webhooksCommand(),
  },
  {
    name: 'deliveries',
    summary: 'list and watch deliveries, and show why one did what it did',
    group: webhooks,
    load: async () => (await import('./deliveries.ts')).deliveriesCommand(),
  },
  {
    name: 'events',
    summary: 'list events, and show where one went',
    group: webhooks,
    load: async () => (await import('./events.ts')).eventsCommand(),
  },
  {
    name: 'dashboard',
    summary: 'see webhooks, deliveries and their stories on one screen, and act on them',
    group: webhooks,
    load: async () => (await import('./dashboard.ts')).dashboardCommand(),
  },
  {
    name: 'why',
    summary: 'find out why something did not arrive: one verdict, its cause, the next command',
    group: webhooks,
    load: async () => (await import('./why.ts')).whyCommand(),
  },
  {
    name: 'stats',
    summary: 'see deliveries, failures and times of answers over time',
    group: webhooks,
    load: async () => (await import('./stats.ts')).statsCommand(),
  },
  {
    name: 'listen',
    summary: 'receive deliveries on this machine, verify, forward and rehearse failures',
    group: receivers,
    load: async () => (await import('./listen.ts')).listenCommand(),
  },
  {
    name: 'rehearse',
    summary: 'try a receiver on everything that it must take, refuse and handle once',
    group: receivers,
    load: async () => (await import('./rehearse.ts')).rehearseCommand(),
  },
  {
    name: 'trigger',
    summary: 'send an example of any event to a webhook',
    group: receivers,
    load: async () => (await import('./trigger.ts')).triggerCommand(),
  },
  {
    name: 'verify',
    summary: 'check a delivery token and show every check',
    group: receivers,
    load: async () => (await import('./verify.ts')).verifyCommand(),
  },
  {
    name: 'organisations',
    alias: 'orgs',
    summary: 'list, create and rename organisations',
    group: data,
    load: async () => (await import('./organisations.ts')).organisationsCommand(),
  },
  {
    name: 'projects',
    summary: 'list, create and change projects',
    group: data,
    load: async () => (await import('./projects.ts')).projectsCommand(),
  },
  {
    name: 'users',
    summary: 'list, create and rename users',
    group: data,
    load: async () => (await import('./users.ts')).usersCommand(),
  },
  {
    name: 'reports',
    summary: 'list, submit and approve project reports',
    group: data,
    load: async () => (await import('./reports.ts')).reportsCommand(),
  },
  {
    name: 'query',
    summary: 'query any resource with a Mango selector',
    group: data,
    load: async () => (await import('./query.ts')).queryCommand(),
  },
  {
    name: 'graphql',
    summary: 'send a GraphQL document',
    group: data,
    load: async () => (await import('./graphql.ts')).graphqlCommand(),
  },
  {
    name: 'sign',
    summary: 'print the headers of a signed request, for curl',
    group: data,
    load: async () => (await import('./sign.ts')).signCommand(),
  },
  {
    name: 'proxy',
    summary: 'sign the requests of other programs on this machine',
    group: data,
    load: async () => (await import('./proxy.ts')).proxyCommand(),
  },
  {
    name: 'explore',
    summary: 'open the API in a browser',
    group: data,
    load: async () => (await import('./explore.ts')).exploreCommand(),
  },
  {
    name: 'login',
    summary: 'save a server and an access token as a profile',
    group: connection,
    load: async () => (await import('./login.ts')).loginCommand(),
  },
  {
    name: 'profiles',
    summary: 'list, choose and remove saved profiles',
    group: connection,
    load: async () => (await import('./profiles.ts')).profilesCommand(),
  },
  {
    name: 'whoami',
    summary: 'show the access token in use and what it may do',
    group: connection,
    load: async () => (await import('./whoami.ts')).whoamiCommand(),
  },
  {
    name: 'tokens',
    summary: 'list, create and revoke access tokens',
    group: connection,
    load: async () => (await import('./tokens.ts')).tokensCommand(),
  },
  {
    name: 'config',
    summary: 'show each setting and where it comes from',
    group: connection,
    load: async () => (await import('./config.ts')).configCommand(),
  },
  {
    name: 'doctor',
    summary: 'find out why the server, or a webhook, is not reached',
    group: connection,
    load: async () => (await import('./doctor.ts')).doctorCommand(),
  },
  {
    name: 'mcp',
    summary: 'give an assistant the commands that read, as tools',
    group: data,
    load: async () => (await import('./mcp.ts')).mcpCommand(wholeTree),
  },
  {
    name: 'audit',
    summary: 'list who has changed what, and when',
    group: operation,
    load: async () => (await import('./audit.ts')).auditCommand(),
  },
  {
    name: 'completion',
    summary: 'print the script that makes a shell complete commands, ids and event types',
    group: connection,
    load: async () => (await import('./completion.ts')).completionCommand(),
  },
  {
    name: 'demo',
    summary: 'see the whole job end to end in a few seconds',
    group: operation,
    load: async () => (await import('./demo.ts')).demoCommand(),
  },
  {
    name: 'server',
    summary: 'start and maintain a server',
    group: operation,
    load: async () => (await import('./server.ts')).serverCommand(),
  },
]

/** Adds every top-level command; those that are not used get only their name and summary. */
export const addCommands = async (program: CommandUnknownOpts, isUsed: (name: string) => boolean): Promise<void> => {
  for (const entry of entries) {
    const isNamed = isUsed(entry.name) || (entry.alias !== undefined && isUsed(entry.alias))
    const command: CommandUnknownOpts = isNamed ? await entry.load() : new Command(entry.name)
    if (entry.alias !== undefined) command.alias(entry.alias)
    program.addCommand(command.summary(entry.summary).helpGroup(entry.group))
    inheritSettings(command, program)
  }
}

/** Every command with its arguments and options, for code that reads all of them. */
const wholeTree = async (): Promise<CommandUnknownOpts> => {
  const tree: CommandUnknownOpts = new Command('tidings')
  await addCommands(tree, () => true)
  return tree
}

/** Commander passes settings only to commands that it creates itself, so this copies them to the others. */
const inheritSettings = (command: CommandUnknownOpts, parent: CommandUnknownOpts): void => {
  command.copyInheritedSettings(parent)
  for (const child of command.commands) inheritSettings(child, command)
}
