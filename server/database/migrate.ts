import { setTimeout as sleep } from 'node:timers/promises'
import type { Knex } from 'knex'
import { type Migration, migrations as ours } from '../../migrations/index.ts'
import { RUNNING_GRANTS } from '../../shared/vocabulary.ts'
import { type Database, isContention, isDuplicate, isMissingTable, rows, run, type Sql } from './connect.ts'
import { passingOver } from './resuming.ts'

// The tables have knex's names and columns, so that an earlier release, which migrated with knex, can read them.
const DONE = 'knex_migrations'
const LOCK = 'knex_migrations_lock'

/** How often the holder of the lock shows that it lives, well within a session's timeout (`mysql.ts`). */
const ALIVE_MS = 5_000
const LOOK_AGAIN_MS = 250
/**
 * An earlier release, which migrated with knex, sets a mark instead of a lock, so that nobody knows whether it lives.
 */
const MARK_WAIT_MS = 60_000

export const migrationFaults = ['LOCKED', 'GRANT_MISSING', 'NEWER_SCHEMA'] as const

/**
 * A fault of migrating, with a hint. LOCKED: an earlier release has marked the schema as being migrated. GRANT_MISSING:
 * the database user lacks a grant. NEWER_SCHEMA: the schema is for a later version.
 */
export class MigrationError extends Error {
  override name = 'MigrationError'
  readonly code: (typeof migrationFaults)[number]
  readonly hint: string
  constructor(code: MigrationError['code'], message: string, hint: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
    this.hint = hint
  }
}

type Options = {
  /** The migrations to use instead of this version's. */
  migrations?: Record<string, Migration>
  /** Called once if another process migrates; this one waits as long as that one lives. */
  onWait?: () => void
}

/**
 * Brings the schema up to date, one process at a time, and returns the names of the migrations that it ran. It can be
 * killed at any moment and run again: finished steps are skipped. Throws MigrationError.
 */
export const migrate = (database: Database, { migrations = ours, onWait }: Options = {}): Promise<string[]> =>
  alone(database, onWait, async (sql, isHeld) => {
    const done = await doneMigrations(sql)
    refuseUnknown(done, migrations)
    const batch = 1 + Math.max(0, ...done.map(each => each.batch))
    const names = Object.keys(migrations).filter(name => !done.some(each => each.name === name))
    for (const name of names) {
      isHeld()
      const { up, needs = null } = migrations[name]!
      await up(sql)
      await sql(DONE).insert({ name, batch, migration_time: new Date(), needs, migrated_at: Date.now() })
    }
    return names
  })

/** Reverts the latest batch of migrations and returns their names. Throws MigrationError. */
export const rollback = (database: Database, { migrations = ours, onWait }: Options = {}): Promise<string[]> =>
  alone(database, onWait, async (sql, isHeld) => {
    const done = await doneMigrations(sql)
    refuseUnknown(done, migrations)
    const latest = Math.max(0, ...done.map(each => each.batch))
    const names = done.filter(each => each.batch === latest).map(each => each.name)
    for (const name of names.toReversed()) {
      isHeld()
      await migrations[name]!.down(sql)
      await sql(DONE).where({ name }).delete()
    }
    return names
  })

/** Removes the mark that an earlier release left when it was killed during a migration. */
export const forceUnlock = async (database: Database): Promise<void> => {
  await untilFree(() => whole(database, prepare), undefined)
  await run(database.knex, `UPDATE ${LOCK} SET is_locked = 0`)
}

export type DoneMigration = { name: string; batch: number; needs?: string | null; migrated_at?: number | null }

/** The migrations that the database has had, in order. */
const doneMigrations = async (sql: Sql): Promise<DoneMigration[]> => {
  const done = await rows<DoneMigration>(sql, `SELECT * FROM ${DONE}`)
  return done.sort((a, b) => (a.name < b.name ? -1 : 1))
}

const UPGRADE_MS = 24 * 3600 * 1000

/**
 * Until when, in epoch milliseconds, processes that do not know a migration may run beside this one: an upgrade takes
 * at most a day. 0 for a database that has had the migration from the beginning.
 */
export const sideBySideUntil = async ({ knex }: Database, name: string): Promise<number> => {
  const done = await doneMigrations(knex)
  const found = done.find(each => each.name === name)
  if (!found || found.batch === Math.min(...done.map(each => each.batch))) return 0
  return Number(found.migrated_at ?? 0) + UPGRADE_MS
}

export type SchemaState = {
  /** The names of the migrations that this version knows and the database has not had. */
  pending: string[]
  /** The migrations in the database that this version does not know and cannot run with. */
  tooNew: DoneMigration[]
}

/** How the database's schema compares with what this version needs. */
export const schemaState = async (database: Database): Promise<SchemaState> => {
  const done = await doneMigrations(database.knex).catch(error => {
    if (isMissingTable(error)) return []
    throw error
  })
  return {
    pending: Object.keys(ours).filter(name => !done.some(each => each.name === name)),
    tooNew: done.filter(each => isTooNew(each, ours)),
  }
}

export const pendingMigrations = async (database: Database): Promise<string[]> => (await schemaState(database)).pending

/** Why this version cannot run on the present schema; undefined if it can. */
export const schemaFault = async (database: Database): Promise<string | undefined> => {
  const { pending, tooNew } = await schemaState(database)
  if (tooNew.length > 0) return newerSchema(tooNew).message
  if (pending.length === 0) return undefined
  return `the schema is not current: run \`tidings server migrate\` (${pending.join(', ')})`
}

/** A migration that only adds to the schema has no `needs`: a version that does not know it runs beside it. */
const isTooNew = ({ name, needs }: DoneMigration, known: Record<string, Migration>): boolean =>
  !(name in known) && needs != null && !(needs in known)

export const newerSchema = (tooNew: DoneMigration[], known = ours): MigrationError =>
  new MigrationError(
    'NEWER_SCHEMA',
    `the schema is newer than this version of Tidings can work with: it has ${tooNew
      .map(({ name, needs }) => `${name}, which is for versions that know ${needs}`)
      .join('; ')}; this one knows ${Object.keys(known).at(-1)} at most`,
    'Run the version of Tidings that made it, or a newer one.',
  )

const refuseUnknown = (done: DoneMigration[], known: Record<string, Migration>): void => {
  const tooNew = done.filter(({ name }) => !(name in known))
  if (tooNew.length === 0) return
  const needing = tooNew.map(({ name, needs }) => ({ name, batch: 0, needs: needs ?? name }))
  throw newerSchema(needing, known)
}

/**
 * Runs the schema changes. If the engine has transactional DDL, all of them apply or none; otherwise each applies by
 * itself, and the next run skips it.
 */
const whole = <T>({ knex, dialect }: Database, work: (sql: Knex) => Promise<T>): Promise<T> =>
  dialect.isEmbedded ? knex.transaction(work) : passingOver(() => work(knex))

/** Creates the two tables if they are missing, with the columns of this version. */
const prepare = async (sql: Knex): Promise<void> => {
  if (!(await sql.schema.hasTable(DONE))) {
    await sql.schema.createTable(DONE, t => {
      t.increments()
      t.string('name')
      t.integer('batch')
      t.timestamp('migration_time')
    })
  }
  for (const [column, type] of NEWER_COLUMNS) {
    if (!(await sql.schema.hasColumn(DONE, column))) await sql.raw(`ALTER TABLE ${DONE} ADD COLUMN ${column} ${type}`)
  }
  if (!(await sql.schema.hasTable(LOCK))) {
    await sql.schema.createTable(LOCK, t => {
      t.increments('index').primary()
      t.integer('is_locked')
    })
  }
  if ((await rows(sql, `SELECT * FROM ${LOCK}`)).length > 0) return
  await sql(LOCK)
    .insert({ index: 1, is_locked: 0 })
    .catch(error => {
      if (!isDuplicate(error)) throw error
    })
}

/** Columns of the first table besides knex's own. */
const NEWER_COLUMNS: [name: string, type: string][] = [
  ['needs', 'varchar(255)'],
  ['migrated_at', 'bigint'],
]

/**
 * Does `work` while no other process migrates. The lock is a row that a transaction of its own holds, whose connection
 * is used now and then: it ends with the process that holds it. An engine of one writer has it in any transaction.
 *
 * @param work is given what throws if the lock was lost
 */
const alone = async <T>(
  database: Database,
  onWait: (() => void) | undefined,
  work: (sql: Knex, isHeld: () => void) => Promise<T>,
): Promise<T> => {
  try {
    if (database.dialect.isEmbedded) {
      const inOne = async (sql: Knex) => {
        await prepare(sql)
        await requireUnmarked(sql)
        return work(sql, () => {})
      }
      return await untilFree(() => whole(database, inOne), onWait)
    }
    await whole(database, prepare)
    const holder = await untilFree(() => hold(database), onWait)
    let lost: unknown
    const alive = setInterval(() => {
      holder.raw('SELECT 1').catch(error => {
        lost = error
      })
    }, ALIVE_MS)
    const isHeld = () => {
      if (lost) throw lost
    }
    try {
      return await whole(database, sql => work(sql, isHeld))
    } finally {
      clearInterval(alive)
      await holder.rollback().catch(() => {})
    }
  } catch (error) {
    throw grantFault(error) ?? error
  }
}

const hold = async ({ knex, dialect }: Database): Promise<Knex.Transaction> => {
  const holder = await knex.transaction()
  try {
    await requireUnmarked(holder, `${dialect.forUpdate} NOWAIT`)
    return holder
  } catch (error) {
    await holder.rollback().catch(() => {})
    throw error
  }
}

class Marked extends Error {}

const requireUnmarked = async (sql: Knex, forUpdate = ''): Promise<void> => {
  const [found] = await rows<{ is_locked: number }>(sql, `SELECT is_locked FROM ${LOCK}${forUpdate}`)
  if (found?.is_locked) throw new Marked()
}

/** Tries until no other process is in the way: as long as that lives, and for a minute where it has left a mark. */
const untilFree = async <T>(work: () => Promise<T>, onWait: (() => void) | undefined): Promise<T> => {
  let hasWaited = false
  let markedSince: number | undefined
  for (;;) {
    try {
      return await work()
    } catch (error) {
      const isMarked = error instanceof Marked
      if (!isMarked && !isContention(error)) throw error
      if (!hasWaited) onWait?.()
      hasWaited = true
      markedSince = isMarked ? (markedSince ?? performance.now()) : undefined
      if (markedSince !== undefined && performance.now() - markedSince > MARK_WAIT_MS) throw locked()
    }
    await sleep(LOOK_AGAIN_MS)
  }
}

const locked = (): MigrationError =>
  new MigrationError(
    'LOCKED',
    'a process of an earlier release has marked the schema as being migrated',
    'If none runs any more, it was killed: tidings server migrate --force-unlock',
  )

/**
 * Denied: a table (ER_TABLEACCESS_DENIED_ERROR), a database (ER_DBACCESS_DENIED_ERROR), a column
 * (ER_COLUMNACCESS_DENIED_ERROR), an administrator's statement (ER_SPECIFIC_ACCESS_DENIED_ERROR), and TiDB's own code.
 */
const DENIED = [1142, 1044, 1143, 1227, 8121]

/** Whether the database user lacks the grant for a statement. */
export const isDenied = (error: unknown): boolean => DENIED.includes((error as { errno?: number }).errno ?? 0)

const grantFault = (error: unknown): MigrationError | undefined => {
  if (!isDenied(error)) return undefined
  const { sqlMessage = '' } = error as { sqlMessage?: string }
  const [, user] = /to user ('[^']*'@'[^']*')|for user ('[^']*'@'[^']*')/.exec(sqlMessage)?.filter(Boolean) ?? []
  return new MigrationError(
    'GRANT_MISSING',
    `the database's user may not do what a migration needs: ${sqlMessage}`,
    `As the database's administrator: GRANT ${MIGRATION_GRANTS.join(', ')} ON DATABASE.* TO ${user ?? 'USER'}`,
    error,
  )
}

/** The grants that migrating needs besides those of running. */
const MIGRATION_GRANTS = [...RUNNING_GRANTS, 'CREATE', 'ALTER', 'DROP', 'INDEX', 'REFERENCES'] as const
