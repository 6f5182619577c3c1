import type { Knex } from 'knex'
import pRetry from 'p-retry'
import { type Migration, migrations } from '../../migrations/index.ts'
import { type Database, isMissingTable } from './connect.ts'

const LOCK_WAIT_MS = 60_000

/** Brings the schema up to date, waiting while another process migrates; returns the names of the migrations it ran. */
export const migrate = (database: Database): Promise<string[]> =>
  whenUnlocked(async () => {
    const [, names] = await database.knex.migrate.latest(CONFIG)
    return names
  })

/** Takes back the latest batch of migrations and returns their names. */
export const rollback = (database: Database): Promise<string[]> =>
  whenUnlocked(async () => {
    const [, names] = await database.knex.migrate.rollback(CONFIG)
    return names
  })

/** Releases the lock that a migration killed halfway has left. */
export const forceUnlock = async (database: Database): Promise<void> => {
  await database.knex.migrate.forceFreeMigrationsLock(CONFIG)
}

/** The names of the migrations that this version knows and the database has not had. */
export const pendingMigrations = async (database: Database): Promise<string[]> => {
  const done = await database
    .knex('knex_migrations')
    .pluck<string[]>('name')
    .catch(error => {
      if (isMissingTable(error)) return [] as string[]
      throw error
    })
  return Object.keys(migrations).filter(name => !done.includes(name))
}

const CONFIG: Knex.MigratorConfig = {
  migrationSource: {
    getMigrations: async () => Object.keys(migrations),
    getMigrationName: (name: string) => name,
    getMigration: async (name: string) => migrations[name] as Migration,
  },
}

const whenUnlocked = <T>(work: () => Promise<T>): Promise<T> =>
  pRetry(work, {
    retries: Number.POSITIVE_INFINITY,
    maxRetryTime: LOCK_WAIT_MS,
    minTimeout: 250,
    factor: 1,
    // Two that create knex's own tables at the same moment: the second finds them there when it tries again.
    shouldRetry: ({ error }) =>
      error.name === 'MigrationLocked' || /already exists|Duplicate entry|_lock/i.test(error.message),
  })
