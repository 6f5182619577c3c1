import { availableParallelism } from 'node:os'
import { Command, InvalidArgumentError, Option } from '@commander-js/extra-typings'
import type { Config } from '../../server/config.ts'
import type { Log } from '../../server/log.ts'
import type { RunningServer } from '../../server/main.ts'
import { databaseFile } from '../../shared/database-url.ts'
import { parseIso } from '../../shared/time.ts'
import { permissions } from '../../shared/vocabulary.ts'
import { profilesPath, saveProfile } from '../connection/profiles.ts'
import { configuration, idsInDatabase, whereConfigured, withDatabase } from '../connection/server-database.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, examples, permissionList, wholeNumber } from '../options.ts'
import { type Colours, describeFields, lostToken } from '../output/output.ts'
import { isByNpx, pathLine } from '../output/program.ts'
import { backupCommand, restoreCommand, restoredCommand, revocationsCommand } from './server-backup.ts'
import { serverDoctorCommand } from './server-doctor.ts'
import { keysCommand } from './server-keys.ts'

// These commands work on the database of the server's environment. They load the server's code only when they run.

export const serverCommand = () =>
  new Command('server')
    .description(
      'Runs and maintains a server, directly on the database that its environment names (TIDINGS_DATABASE_URL ' +
        'and the rest); in a folder with a sandbox, on that.',
    )
    .addCommand(startCommand())
    .addCommand(checkCommand())
    .addCommand(migrateCommand())
    .addCommand(tokenCommand())
    .addCommand(seedCommand())
    .addCommand(keysCommand())
    .addCommand(backupCommand())
    .addCommand(restoreCommand())
    .addCommand(revocationsCommand())
    .addCommand(restoredCommand())
    .addCommand(serverDoctorCommand())
    .addHelpText(
      'after',
      examples(['Try it out', 'tidings server start --sandbox'], ['Is everything in order?', 'tidings server doctor']),
    )

const startUsage = () =>
  new Command('start')
    .summary('run a server with the roles that TIDINGS_ROLES names')
    .description(
      'Runs a server until it is stopped. On SIGTERM or ctrl-C it accepts no new requests, ' +
        'finishes what is in flight, and ends within 30 s.',
    )
    .option(
      '--sandbox',
      'on a SQLite file under TIDINGS_HOME, with samples and a CLI profile; this is what npm start does',
    )
    .option(
      '--processes <count>',
      'this many processes, or "auto" for one a core: they share the port, and one that dies is started again; ' +
        'each has its own TIDINGS_CONCURRENCY and database connections. MySQL or MariaDB only',
      processCount,
      1,
    )
    .addHelpText(
      'after',
      examples(
        ['Try it out', 'tidings server start --sandbox'],
        [
          'In production, after `tidings server migrate`',
          'TIDINGS_DATABASE_URL_FILE=/run/secrets/database-url TIDINGS_MASTER_KEY_FILE=/run/secrets/master-key ' +
            'tidings server start',
        ],
        ['On all cores of this machine', 'tidings server start --processes auto'],
        ['Metrics and health on a port of their own', 'TIDINGS_METRICS_PORT=9400 tidings server start'],
        ['The delivery loop alone, on a machine of its own', 'TIDINGS_ROLES=delivery tidings server start'],
      ),
    )

const startCommand = () =>
  startUsage().action(async (options, command) => {
    const session = new Session(command)
    if (options.sandbox) {
      requireOneProcess(options.processes)
      return startSandbox(session)
    }
    const config = await configuration()
    const isEmbedded = databaseFile(config.databaseUrl) !== undefined
    if (isEmbedded) requireOneProcess(options.processes)
    const count = options.processes === 'auto' ? (isEmbedded ? 1 : availableParallelism()) : options.processes
    const { isOneOfSeveral, leaveParent, runProcesses } = await import('../../server/processes.ts')
    if (isOneOfSeveral) return runUntilSignal(config).finally(leaveParent)
    if (count === 1) return runUntilSignal(config)
    const { createLog } = await import('../../server/log.ts')
    const how = await runProcesses(count, createLog(config.logLevel))
    if (how === 'replaced') return await becomeInstalled()
    if (how === 'stopped') return
    throw new CliError(
      exitCodes.failed,
      'CANNOT_START',
      'The first process has ended before it was ready.',
      'Its output is above.',
    )
  })

/** Goes on as the release that was installed in place of this one. */
const becomeInstalled = async (): Promise<never> => {
  const { becomeInstalled } = await import('../../server/release.ts')
  return becomeInstalled()
}

const processCount = (value: string): number | 'auto' => {
  if (value === 'auto') return value
  const count = wholeNumber(value)
  if (count < 1 || count > MOST_PROCESSES) throw new InvalidArgumentError(`Give 1 to ${MOST_PROCESSES}, or auto.`)
  return count
}

const MOST_PROCESSES = 256

/** SQLite serves one process: another would wait for each of its transactions. */
const requireOneProcess = (processes: number | 'auto'): void => {
  if (processes === 1 || processes === 'auto') return
  throw usageError(
    `SQLite is for one process, and --processes asks for ${processes}.`,
    'Give a MySQL or MariaDB database, TIDINGS_DATABASE_URL=mysql://…, or leave out --processes.',
  )
}

const startSandbox = async (session: Session): Promise<void> => {
  const { prepareSandbox } = await import('../../server/sandbox.ts')
  const { config, credentials } = await whereConfigured(() => prepareSandbox(process.env))
  await runUntilSignal(config, url => {
    const { messageColours: colours } = session.output
    let profile = `CLI profile "sandbox" in ${profilesPath()}`
    try {
      saveProfile('sandbox', { url, apiKey: credentials.apiKey, apiSecret: credentials.apiSecret })
    } catch (error) {
      // The server runs without it; its commands do not.
      if (!(error instanceof CliError)) throw error
      profile = 'without a CLI profile'
      session.output.warning(`${error.message} ${error.hint} Commands reach the sandbox once it is started after that.`)
    }
    session.output.message(`
${colours.bold('Tidings is ready')} at ${colours.cyan(url)}
Sandbox in ${config.home}, ${profile}

In another terminal, in this folder:
  ${colours.bold('tidings demo')}                 see the whole job end to end
  ${colours.bold('tidings listen --register')}    receive events on this machine, verified
  ${colours.bold('tidings organisations list')}   what the samples hold
  ${colours.bold('tidings explore')}              the API in a browser, ready to ask
  ${colours.bold('tidings --help')}               everything else
${isByNpx ? withoutNpx(colours) : ''}
ctrl-C stops it; the data stays.`)
  })
}

const withoutNpx = (colours: Colours): string => `
npx takes most of a second each time. After this, “tidings” is enough there:
  ${colours.bold(pathLine())}
`

/**
 * The shutdown may wait for something external, such as a database that does not answer, so the process ends before an
 * init system kills it. Another process takes over unrecorded deliveries when the leases run out.
 */
const SHUTDOWN_LIMIT_MS = 28_000

const runUntilSignal = async (config: Config, onReady: (url: string) => void = () => {}): Promise<void> => {
  const { boundYoungSpace, compactHeapAtRest } = await import('../../server/heap.ts')
  boundYoungSpace()
  const { startServer } = await import('../../server/main.ts')
  const { createLog } = await import('../../server/log.ts')
  const { becomeInstalled } = await import('../../server/release.ts')
  const { processNumber, STOP_SIGNALS, tellReady } = await import('../../server/processes.ts')
  const number = processNumber()
  const log = number === undefined ? createLog(config.logLevel) : createLog(config.logLevel).child({ process: number })
  const server = await startServer(config, log).catch(error => {
    throw listenFault(error) ?? error
  })
  // The parent of several processes starts the other release itself.
  const end = (isReplaced: boolean) => (isReplaced && number === undefined ? becomeInstalled() : process.exit(0))
  const stopped = stopOnSignal(server, log, STOP_SIGNALS, end)
  try {
    await Promise.race([server.ready.then(() => onReady(server.url)).then(tellReady), stopped])
    compactHeapAtRest()
  } catch (error) {
    await server.stop()
    throw (
      listenFault(error) ??
      new CliError(
        exitCodes.failed,
        'CANNOT_START',
        `The server cannot start: ${(error as Error).message}.`,
        (error as { hint?: string }).hint ?? 'The log above says more.',
      )
    )
  }
  await stopped
}

/** Resolves when the server has stopped after a signal; one whose release was replaced goes on as `end(true)` does. */
const stopOnSignal = (
  server: RunningServer,
  log: Log,
  signals: readonly NodeJS.Signals[],
  end: (isReplaced: boolean) => void,
): Promise<void> =>
  new Promise<void>(resolve => {
    let isStopping = false
    let isReplaced = false
    const stop = () => {
      // ctrl-C sends one signal, and the parent of several processes another.
      if (isStopping) return
      isStopping = true
      setTimeout(() => {
        log.error('the database or a request keeps it from finishing; what is left is done when leases run out')
        end(isReplaced)
      }, SHUTDOWN_LIMIT_MS).unref()
      log.info('shutting down')
      // Errors of the database meanwhile do not stop the rest of the shutdown, until the limit.
      server.stop().then(
        () => (isReplaced ? end(true) : resolve()),
        error => log.error({ err: error }, 'shutting down without all that it needs'),
      )
    }
    for (const signal of signals) process.once(signal, stop)
    server.replaced.then(() => {
      isReplaced = !isStopping
      stop()
    })
  })

/** The error for an address that cannot be listened on; undefined for any other error. */
const listenFault = (error: unknown): CliError | undefined => {
  const { code, syscall, address, port, message } = error as NodeJS.ErrnoException & { address?: string; port?: number }
  if (syscall !== 'listen' && syscall !== 'bind' && syscall !== 'getaddrinfo') return undefined
  if (code === 'EADDRINUSE') {
    return new CliError(
      exitCodes.failed,
      'PORT_IN_USE',
      `Another process listens on ${address}:${port} already.`,
      `Stop it, or choose another port: TIDINGS_PORT=${port! + 1} …`,
    )
  }
  return new CliError(
    exitCodes.failed,
    'CANNOT_LISTEN',
    `The server cannot listen: ${message}.`,
    'Set TIDINGS_HOST and TIDINGS_PORT (and TIDINGS_METRICS_HOST) to addresses of this machine.',
  )
}

const checkCommand = () =>
  new Command('check')
    .summary('would a server with this environment start?')
    .description(
      'Checks whether a server of this release would become ready with this environment: configuration, database, ' +
        'schema, and the step of a replacement of the master key. Run it before you end a server that works. Changes ' +
        'nothing. Exit code 1 if it would not.',
    )
    .addHelpText(
      'after',
      examples(
        ['Restart only if the new settings are accepted', 'tidings server check && systemctl restart tidings@01'],
        ['What of the installation is not in order?', 'tidings server doctor'],
      ),
    )
    .action(async (_options, command) => {
      const { output } = new Session(command)
      await withDatabase(async (database, config) => {
        const { startFault } = await import('../../server/check.ts')
        const fault = await startFault(database, config)
        if (fault) {
          throw new CliError(
            exitCodes.failed,
            'CANNOT_START',
            `A server would not start: ${fault.message}.`,
            fault.hint,
          )
        }
        output.one({ starts: true }, () => '')
        output.message('A server with this environment would start.')
      })
    })

const migrateCommand = () =>
  new Command('migrate')
    .summary('bring the database schema up to date')
    .description(
      'Brings the schema of the database up to date. Waits while another process does the same. If it is killed, ' +
        'run it again: it continues from there. Servers of the previous version may run meanwhile. The database user ' +
        'needs more grants than a server’s: CREATE, ALTER, DROP, INDEX and REFERENCES.',
    )
    .option('--down', 'revert the latest batch of migrations instead, with the data in its tables')
    .option('--force-unlock', 'first remove the lock that a killed migration of an earlier release has left')
    .option('-y, --yes', 'do not ask for confirmation')
    .addHelpText(
      'after',
      examples(
        ['Before the first start, and with each new version', 'tidings server migrate'],
        [
          'As a database user that may change the schema',
          'TIDINGS_DATABASE_URL_FILE=/run/secrets/migration-url tidings server migrate',
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { forceUnlock, MigrationError, migrate, rollback } = await import('../../server/database/migrate.ts')
      const onWait = () => session.output.message('Another process migrates this database; waiting for it.')
      if (options.down) {
        const { confirm } = await import('../output/prompt.ts')
        await confirm(
          'Revert the latest migrations? The tables they created are dropped with all data in them.',
          session,
        )
      }
      await withDatabase(async database => {
        if (options.forceUnlock) await forceUnlock(database)
        const names = await (options.down ? rollback : migrate)(database, { onWait }).catch(error => {
          if (!(error instanceof MigrationError)) throw error
          throw new CliError(exitCodes.failed, error.code, `Nothing was migrated: ${error.message}.`, error.hint)
        })
        const done = options.down ? 'Took back' : 'Migrated'
        session.output.one({ migrated: options.down ? [] : names, takenBack: options.down ? names : [] }, () => '')
        session.output.message(
          names.length === 0 ? 'The schema is up to date already.' : `${done}: ${names.join(', ')}.`,
        )
      })
    })

const tokenCommand = () =>
  new Command('token')
    .summary('create an access token, such as the first one of a new installation')
    .description('Creates an access token and prints its id, API key and secret. The secret is shown only this once.')
    .requiredOption('--name <name>', 'what the token is for')
    .requiredOption('--permissions <list>', `${permissions.join(', ')} (comma-separated)`, collect)
    .option(
      '--organisation <id>',
      'an organisation that it sees, by id or name (repeatable); by default it sees all',
      collect,
    )
    .addOption(new Option('--expires <time>', 'when it expires, in ISO 8601').argParser(parseTime))
    .addHelpText(
      'after',
      examples(
        ['The first token of a new installation', 'tidings server token --name ci --permissions admin --output json'],
        [
          'For an integrator who sees one organisation',
          'tidings server token --name acme --permissions read,webhooks --organisation ID',
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      if (session.output.form === 'id') {
        throw usageError('--output id would lose the secret.', 'Take --output json.')
      }
      session.output.mustNotBeLost()
      await withDatabase(async (database, config) => {
        const { createToken } = await import('../../server/maintenance.ts')
        const organisationIds = await idsInDatabase(database, 'organisations', options.organisation)
        const { id, apiKey, apiSecret } = await createToken(database, config, {
          name: options.name,
          permissions: permissionList(options.permissions),
          organisationIds,
          expiresAt: options.expires,
        })
        session.output.secret({ id, apiKey, secret: apiSecret }, lostToken(id), colours =>
          describeFields(
            [
              ['id', id],
              ['API key', apiKey],
              ['secret', apiSecret],
            ],
            colours,
          ),
        )
        session.output.message('The secret is not shown again. Save it with: tidings login')
      })
    })

const parseTime = (text: string): number => {
  const ms = parseIso(text)
  if (ms === undefined) throw new InvalidArgumentError('Write a time in ISO 8601, such as 2027-01-31T00:00:00Z.')
  return ms
}

const seedUsage = () =>
  new Command('seed')
    .summary('fill the database with made-up data, for tests')
    .description(
      'Adds made-up organisations, projects, users, webhooks, events and deliveries to the database, for tests. ' +
        'Without numbers: a few samples, if there are none. Events are spread over the days that they are kept; ' +
        'their deliveries have attempts, and some of the last day are still pending.',
    )
    .option('--organisations <n>', 'how many organisations to add', wholeNumber)
    .option('--projects <n>', 'how many projects to add, spread over them', wholeNumber)
    .option('--users <n>', 'how many users to add', wholeNumber)
    .option('--webhooks <n>', 'how many webhooks to add, of a new access token whose secret nobody has', wholeNumber)
    .option('--events <n>', 'how many events to add, spread over the projects', wholeNumber)
    .option('--deliveries <n>', 'how many deliveries to add, spread over the events and the webhooks', wholeNumber)
    .addHelpText(
      'after',
      examples(
        ['A few samples', 'tidings server seed'],
        ['A million organisations', 'tidings server seed --organisations 1000000'],
        [
          'A month of a busy installation',
          'tidings server seed --organisations 1000 --projects 5000 --webhooks 100 ' +
            '--events 1000000 --deliveries 5000000',
        ],
      ),
    )

const seedCommand = () =>
  seedUsage().action(async (options, command) => {
    const session = new Session(command)
    await withDatabase(async (database, config) => {
      const { seedMany, seedSamples } = await import('../../server/seed.ts')
      const { seedHistory } = await import('../../server/seed-history.ts')
      const { createToken, withClock } = await import('../../server/maintenance.ts')
      const now = await withClock(database, async clock => clock.now())
      const { organisations = 0, projects = 0, users = 0, webhooks = 0, events = 0, deliveries = 0 } = options
      if (organisations + projects + users + webhooks + events + deliveries === 0) {
        await seedSamples(database, now)
        session.output.one({ samples: true }, () => '')
        return session.output.message('The samples are there: tidings organisations list')
      }
      if (deliveries > 0 && events === 0) throw usageError('--deliveries belong to added events: give --events too')
      const reported = new Map<string, number>()
      const tell = (table: string, written: number) => {
        if (written < (reported.get(table) ?? 0) + 100_000) return
        reported.set(table, written)
        session.output.message(`${table}: ${written}`)
      }
      await seedMany(database, { organisations, projects, users }, now, tell)
      if (webhooks + events > 0) {
        const made = webhooks > 0 && (await createToken(database, config, { name: 'seed', permissions: ['read'] }))
        const accessTokenId = made ? made.id : ''
        const history = { accessTokenId, days: config.retentionDays, now }
        await seedHistory(database, { webhooks, events, deliveries }, history, tell)
      }
      session.output.one({ organisations, projects, users, webhooks, events, deliveries }, () => '')
      session.output.message(
        `Added ${organisations} organisations, ${projects} projects, ${users} users, ` +
          `${webhooks} webhooks, ${events} events and ${deliveries} deliveries.`,
      )
    })
  })
