import type { Config } from '../../server/config.ts'
import type { Database } from '../../server/database/connect.ts'
import { CliError, exitCodes } from '../errors.ts'
import { cellText } from '../output/output.ts'
import { ambiguous } from '../resources/ids.ts'

/** Runs `work` on the server's database. Throws a CliError if the database does not answer or has no schema. */
export const withDatabase = async (work: (database: Database, config: Config) => Promise<void>): Promise<void> => {
  const config = await configuration()
  const { connect, isMissingTable } = await import('../../server/database/connect.ts')
  const database = await connect(config.databaseUrl).catch(error => {
    throw new CliError(
      exitCodes.unreachable,
      'DATABASE_NOT_REACHED',
      `The database does not answer: ${error.message || error.code}.`,
      'Check TIDINGS_DATABASE_URL, and that the database runs.',
    )
  })
  try {
    await work(database, config)
  } catch (error) {
    const { KeyOrderError } = await import('../../server/keys/master-keys.ts')
    if (error instanceof KeyOrderError) {
      throw new CliError(exitCodes.failed, 'MASTER_KEY', `Nothing was done: ${error.message}.`, error.hint)
    }
    if (!isMissingTable(error)) throw error
    throw new CliError(
      exitCodes.failed,
      'SCHEMA_MISSING',
      'The database has no schema yet.',
      'Create it with: tidings server migrate',
    )
  } finally {
    await database.close()
  }
}

/** The server's configuration from its environment. Throws a CliError that lists every fault. */
export const configuration = async (): Promise<Config> => {
  const { readConfig } = await import('../../server/config.ts')
  return whereConfigured(async () => readConfig())
}

/** Converts the faults of a configuration to a CliError. */
export const whereConfigured = async <T>(work: () => Promise<T>): Promise<T> => {
  const { ConfigError } = await import('../../server/config.ts')
  return work().catch(error => {
    if (!(error instanceof ConfigError)) throw error
    throw new CliError(
      exitCodes.failed,
      'CONFIGURATION',
      error.message,
      'docs/reference/settings.md lists every setting. To try Tidings without any: npm start',
    )
  })
}

const NOUNS = { organisations: 'organisation', access_tokens: 'access token' }

/**
 * The ids of what is named by id or name (an access token also by its API key), from the database itself. Undefined if
 * nothing is given.
 * @throws CliError with exit code 3 if nothing is called so, and with 2 if several are
 */
export const idsInDatabase = async (
  database: Database,
  table: keyof typeof NOUNS,
  given: string[] | undefined,
): Promise<string[] | undefined> => {
  if (given === undefined) return undefined
  const { rowsCalled } = await import('../../server/maintenance.ts')
  const ids: string[] = []
  for (const one of given) {
    const [found, ...others] = await rowsCalled(database, table, one)
    if (!found) {
      throw new CliError(
        exitCodes.notFound,
        'NOT_FOUND',
        `There is no ${NOUNS[table]} ${cellText(one)} in this database.`,
        'Give its id or its whole name.',
      )
    }
    if (others.length > 0) {
      const shown = [found, ...others].map(({ id }) => cellText(id))
      throw ambiguous(one, NOUNS[table], shown, false)
    }
    ids.push(found.id)
  }
  return ids
}
