import { chmodSync, closeSync, copyFileSync, existsSync, openSync, renameSync, rmSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { databaseFile } from '../shared/database-url.ts'
import type { Clock } from './clock.ts'
import type { Config } from './config.ts'
import { connect, type Database, marks, rows, run } from './database/connect.ts'
import { migrate } from './database/migrate.ts'
import { auditOperator } from './domain/audit.ts'
import { liveProcesses, named, namesOf, requireMasterKeys } from './keys/master-keys.ts'
import { createSealer } from './keys/seal.ts'
import { revokeKey } from './keys/signing-keys.ts'

// Backups of SQLite, and the repair of any restored database, in which everything revoked since the backup would be
// valid again.

/** Why a file cannot be written, or cannot replace the database. */
export class BackupError extends Error {
  override name = 'BackupError'
  readonly hint: string
  constructor(message: string, hint: string) {
    super(message)
    this.hint = hint
  }
}

const OWNER_ONLY = 0o600

/**
 * Writes the database as of one moment into a new file while servers run: section 3 of
 * https://www.sqlite.org/lang_vacuum.html. The file appears only when it is complete. Throws BackupError.
 */
export const backUp = (path: string, to: string): void => {
  if (existsSync(to)) throw new BackupError(`${to} already exists`, 'Name a file that does not exist.')
  const partial = `${to}.partial`
  rmSync(partial, { force: true })
  closeSync(openSync(partial, 'wx', OWNER_ONLY))
  const database = new DatabaseSync(path, { readOnly: true, timeout: 10_000 })
  try {
    database.prepare('VACUUM INTO ?').run(partial)
  } catch (error) {
    rmSync(partial, { force: true })
    throw error
  } finally {
    database.close()
  }
  renameSync(partial, to)
}

/** A revoked access token or signing key, and since when, in epoch milliseconds. */
export type Revocation = { kind: 'access token' | 'signing key'; id: string; revokedAt: number }

/** The revocations since a time, latest last. */
export const listRevocations = async ({ knex }: Database, since = 0): Promise<Revocation[]> => {
  const found = await rows<Revocation>(
    knex,
    `SELECT 'access token' AS kind, id, revoked_at AS revokedAt FROM access_tokens WHERE revoked_at >= ?
     UNION ALL
     SELECT 'signing key', kid, revoked_at FROM signing_keys WHERE revoked_at >= ?
     ORDER BY revokedAt`,
    [since, since],
  )
  return found.map(each => ({ ...each, revokedAt: Number(each.revokedAt) }))
}

/**
 * The result after a restore. `unknown`: revocations of tokens and keys that were created after the backup and do not
 * exist.
 */
export type Restored = { revokedTokens: string[]; revokedKeys: string[]; unknown: string[] }

/**
 * Revokes again what had been revoked before the database was lost: everything in a list of revocations, or all access
 * tokens except those to keep.
 */
export const afterRestore = async (
  database: Database,
  { masterKeys }: Config,
  wanted: { revocations: Revocation[] } | { keep: string[] },
  clock: Clock,
): Promise<Restored> => {
  const now = clock.now()
  const sealer = createSealer(masterKeys)
  await database.transaction(trx => requireMasterKeys(trx, namesOf(masterKeys)))
  const good = await database.knex('access_tokens').whereNull('revoked_at').pluck<string[]>('id')
  if ('keep' in wanted) {
    const revokedTokens = good.filter(id => !wanted.keep.includes(id))
    await revokeTokens(database, revokedTokens, now)
    await auditOperator(database.knex, { operation: 'server restored', args: wanted, now })
    return { revokedTokens, revokedKeys: [], unknown: wanted.keep.filter(id => !good.includes(id)) }
  }
  const done: Restored = { revokedTokens: [], revokedKeys: [], unknown: [] }
  const keys = new Map(
    (
      await rows<{ kid: string; revoked_at: number | null }>(database.knex, 'SELECT kid, revoked_at FROM signing_keys')
    ).map(row => [row.kid, row.revoked_at]),
  )
  const known = new Set(await database.knex('access_tokens').pluck<string[]>('id'))
  for (const { kind, id } of wanted.revocations) {
    if (kind === 'access token') {
      if (good.includes(id)) done.revokedTokens.push(id)
      else if (!known.has(id)) done.unknown.push(id)
    } else if (keys.get(id) === null) {
      await revokeKey(database, sealer, id, now)
      done.revokedKeys.push(id)
    } else if (!keys.has(id)) done.unknown.push(id)
  }
  await revokeTokens(database, done.revokedTokens, now)
  await auditOperator(database.knex, { operation: 'server restored', args: done, now })
  return done
}

const AT_ONCE = 1_000

const revokeTokens = async ({ knex }: Database, ids: string[], now: number): Promise<void> => {
  for (let from = 0; from < ids.length; from += AT_ONCE) {
    const part = ids.slice(from, from + AT_ONCE)
    await run(
      knex,
      `UPDATE access_tokens SET revoked_at = ?, updated_at = ? WHERE revoked_at IS NULL AND id IN (${marks(part)})`,
      [now, now, ...part],
    )
  }
}

/**
 * Replaces a SQLite database by a backup and keeps the old one beside it. The backup is migrated first, and gets the
 * old database's revocations. Throws BackupError while a server runs on it.
 */
export const restore = async (
  config: Config,
  from: string,
  clockOf: (database: Database) => Promise<Clock & { stop(): void }>,
): Promise<Restored & { kept: string | undefined }> => {
  const path = databaseFile(config.databaseUrl)!
  checkBackup(from)
  const restoring = `${path}.restoring`
  rmSync(restoring, { force: true })
  copyFileSync(from, restoring)
  chmodSync(restoring, OWNER_ONLY)
  const revocations = existsSync(path) ? await revocationsOf(config.databaseUrl) : []
  const database = await connect(`sqlite:${restoring}`)
  let done: Restored
  try {
    await migrate(database)
    const clock = await clockOf(database)
    done = await afterRestore(database, config, { revocations }, clock).finally(() => clock.stop())
    await database.knex('processes').delete()
  } finally {
    await database.close()
  }
  makeWhole(restoring)
  let kept: string | undefined
  if (existsSync(path)) {
    makeWhole(path)
    kept = `${path}.before-${new Date().toISOString().replaceAll(/[:.]/g, '')}`
    renameSync(path, kept)
  }
  renameSync(restoring, path)
  return { ...done, kept }
}

const checkBackup = (from: string): void => {
  if (!existsSync(from))
    throw new BackupError(`there is no file ${from}`, 'Give one that `tidings server backup` wrote.')
  const database = new DatabaseSync(from, { readOnly: true })
  try {
    const [found] = database.prepare('PRAGMA integrity_check').all() as { integrity_check: string }[]
    const isOurs = database.prepare("SELECT 1 FROM sqlite_master WHERE name = 'knex_migrations'").get()
    if (found?.integrity_check === 'ok' && isOurs) return
    throw new BackupError(`${from} is not a complete database of Tidings`, 'Use another backup.')
  } catch (error) {
    if (error instanceof BackupError) throw error
    throw new BackupError(`${from} is not a database: ${(error as Error).message}`, 'Use another backup.')
  } finally {
    database.close()
  }
}

/** The revocations of the database to be replaced, as far as it is readable. */
const revocationsOf = async (url: string): Promise<Revocation[]> => {
  const database = await connect(url)
  try {
    const live = await liveProcesses(database.knex).catch(() => [])
    if (live.length > 0) {
      throw new BackupError(
        `${live.map(named).join(' and ')} runs on this database`,
        'Stop it first. A process that was killed counts for 45 s more.',
      )
    }
    return await listRevocations(database).catch(() => [])
  } finally {
    await database.close()
  }
}

/** Moves the content of the write-ahead log into the file, so that the file can be moved alone. */
const makeWhole = (path: string): void => {
  try {
    const database = new DatabaseSync(path, { timeout: 1_000 })
    database.exec('PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE')
    database.close()
  } catch {
    // A damaged database has nothing to checkpoint; its log is moved with it.
  }
  for (const suffix of ['-wal', '-shm'])
    if (existsSync(path + suffix)) renameSync(path + suffix, `${path}.broken${suffix}`)
}
