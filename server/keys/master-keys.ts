import { hostname } from 'node:os'
import { migrations } from '../../migrations/index.ts'
import { toIso } from '../../shared/time.ts'
import { version } from '../../shared/version.ts'
import type { Role } from '../config.ts'
import { type Database, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { isPassing } from '../database/patience.ts'
import type { Transaction } from '../database/transaction.ts'
import { newId } from '../ids.ts'
import type { Log } from '../log.ts'
import { masterKeyName } from './seal.ts'

// A master key is replaced in steps: OLD, then OLD,NEW everywhere, then NEW,OLD everywhere, then `server keys reseal`,
// then NEW. Each process records its keys in a row of its own. A process is refused if it would seal with a key that
// another cannot open, or cannot open what another seals or has sealed. The check locks the rows of all keys.

/** How often a process reports that it lives, and after how long without a report it counts as dead. */
const SEEN_MS = 10_000
export const DEAD_MS = 45_000
/** When the row of a dead process is deleted. */
const FORGOTTEN_MS = 24 * 3600 * 1000

/** A process of the installation, by its own record. */
export type LiveProcess = {
  id: string
  host: string
  pid: number
  version: string
  roles: string
  /** The latest migration that it knows; null for a version from before `0015_signing`. */
  knows: string | null
  /** The names of its master keys; it seals with the first. */
  masterKeys: string[]
  startedAt: number
}

/** A step of the master key's replacement was taken before the previous one was done everywhere. */
export class KeyOrderError extends Error {
  override name = 'KeyOrderError'
  readonly hint: string
  /** Other processes prevent it now, perhaps not for long. */
  readonly mayPass: boolean
  constructor(message: string, hint: string, { mayPass }: { mayPass: boolean }) {
    super(message)
    this.hint = hint
    this.mayPass = mayPass
  }
}

/** The latest migration that this version knows. */
const LATEST = Object.keys(migrations).at(-1)!

export const namesOf = (masterKeys: Buffer[]): string[] => masterKeys.map(masterKeyName)

/** The living processes, by the database's clock. */
export const liveProcesses = async (sql: Sql): Promise<LiveProcess[]> => {
  const { nowMs } = dialectOf(sql)
  type Row = Omit<LiveProcess, 'masterKeys' | 'startedAt'> & { master_keys: string; started_at: number }
  const found = await rows<Row>(
    sql,
    `SELECT id, host, pid, version, roles, knows, master_keys, started_at FROM processes
     WHERE seen_at > ${nowMs} - ${DEAD_MS} ORDER BY started_at, id`,
  )
  return found.map(({ id, host, pid, version, roles, knows, master_keys, started_at }) => ({
    ...{ id, host, pid, version, roles, knows },
    masterKeys: master_keys.split(','),
    startedAt: Number(started_at),
  }))
}

export const named = ({ host, pid, version, startedAt }: LiveProcess): string =>
  `process ${pid} on ${host} (version ${version}, since ${toIso(startedAt)})`

/**
 * Throws KeyOrderError unless every process can open what these keys seal, and these keys open everything that is
 * sealed or that other processes seal. Until the transaction ends, no process is admitted that would change that.
 *
 * @param seals whether something will be sealed
 */
export const requireMasterKeys = async (
  trx: Sql,
  names: string[],
  { seals = true, except = '' }: { seals?: boolean; except?: string } = {},
): Promise<void> => {
  const [sealing] = names as [string]
  const { onDuplicate, forUpdate } = dialectOf(trx)
  const known = await rows<{ name: string; retired_at: number | null }>(
    trx,
    `SELECT name, retired_at FROM master_keys ORDER BY name${forUpdate}`,
  )
  // Only what is not there yet is written: a start of every process would wait for the commit of another.
  if (seals && !known.some(({ name, retired_at }) => name === sealing && retired_at === null)) {
    await run(
      trx,
      `INSERT INTO master_keys (name, retired_at) VALUES (?, NULL)${onDuplicate(['name'])}retired_at = NULL`,
      [sealing],
    )
  }
  const closed = known.filter(({ name, retired_at }) => retired_at === null && !names.includes(name))
  const others = (await liveProcesses(trx)).filter(({ id }) => id !== except)
  if (closed.length > 0) {
    const list = closed.map(({ name }) => name).join(', ')
    throw new KeyOrderError(
      `secrets are sealed with master key ${list}, which TIDINGS_MASTER_KEY does not name ` +
        `(it names ${names.join(', ')})`,
      'Name it as well: TIDINGS_MASTER_KEY=new,old. It can be left out once `tidings server keys reseal` has been run.',
      { mayPass: false },
    )
  }
  const without = seals ? others.filter(({ masterKeys }) => !masterKeys.includes(sealing)) : []
  if (without.length > 0) {
    throw new KeyOrderError(
      `this process would seal with master key ${sealing}, which ${without.map(named).join(' and ')} cannot open`,
      'First set TIDINGS_MASTER_KEY=old,new for every process. Then put the new key first.',
      { mayPass: true },
    )
  }
}

/** Reports this process's keys while it runs; `fault` says why the process may not work, if it may not. */
export type Membership = { id: string; fault(): string | undefined; leave(): Promise<void> }

/** Admits this process if its master keys match those of the others. Throws KeyOrderError otherwise. */
export const joinProcesses = async (
  database: Database,
  { masterKeys, roles, log }: { masterKeys: Buffer[]; roles: Role[]; log: Log },
): Promise<Membership> => {
  const names = namesOf(masterKeys)
  const id = newId(Date.now())
  const { nowMs } = database.dialect
  let fault: string | undefined

  const enter = async (trx: Transaction): Promise<void> => {
    await requireMasterKeys(trx, names, { except: id })
    await run(
      trx,
      `INSERT INTO processes (id, host, pid, version, roles, knows, master_keys, started_at, seen_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ${nowMs}, ${nowMs})`,
      [id, hostname(), process.pid, version, roles.join(','), LATEST, names.join(',')],
    )
  }

  /** The row is gone if the process stood still for long, or the database was restored. */
  const saySo = async (): Promise<void> => {
    const known = await run(database.knex, `UPDATE processes SET seen_at = ${nowMs} WHERE id = ?`, [id])
    if (known === 0) await database.transaction(enter)
  }

  await database.transaction(enter)
  const timer = setInterval(() => {
    saySo().then(
      () => {
        fault = undefined
      },
      error => {
        // A process that cannot report during an outage, or while a row is locked, is checked after it.
        if (isPassing(error)) return
        fault = error.message
        log.error({ err: error }, 'this process does not fit the others: it is not ready')
      },
    )
  }, SEEN_MS).unref()
  return {
    id,
    fault: () => fault,
    async leave() {
      clearInterval(timer)
      await run(database.knex, 'DELETE FROM processes WHERE id = ?', [id]).catch(() => {})
    },
  }
}

/** Deletes the rows of processes that have been dead for long. */
export const forgetProcesses = async (sql: Sql): Promise<void> => {
  const { nowMs } = dialectOf(sql)
  const dead = await rows<{ id: string }>(sql, `SELECT id FROM processes WHERE seen_at < ${nowMs} - ${FORGOTTEN_MS}`)
  const ids = dead.map(({ id }) => id)
  if (ids.length > 0) await run(sql, `DELETE FROM processes WHERE id IN (${marks(ids)})`, ids)
}
