import { setTimeout as sleep } from 'node:timers/promises'
import { eachBeat } from './beat.ts'
import { checkWritable, type Database } from './database/connect.ts'
import { isFull, wasFull } from './database/full-disk.ts'
import { schemaFault } from './database/migrate.ts'
import type { ServerState } from './http/state.ts'
import type { Log } from './log.ts'

/** The least time between two checks of the database, however often a client asks. */
const ASKED_EACH_MS = 1_000
/** A database that takes longer does not answer: probes give up after 2 s (deploy/kubernetes). */
const ANSWERS_WITHIN_MS = 1_500
/** How often the process checks itself, so that the log tells of a fault even if nobody asks. */
const LOOK_MS = 10_000

const SILENT = 'the database does not answer'
const FULL = 'the database cannot be written: its disk is full'

export type Readiness = {
  /** Why this process is not ready; undefined if it is. */
  fault(): Promise<string | undefined>
  stop(): void
}

type Given = {
  state: Pick<ServerState, 'database' | 'isOpen' | 'isStopping' | 'fault' | 'service'>
  log: Pick<Log, 'error' | 'info'>
  answersWithinMs?: number
  lookMs?: number
}

/** Checks whether a process is ready, and logs when that changes. */
export const createReadiness = ({
  state,
  log,
  answersWithinMs = ANSWERS_WITHIN_MS,
  lookMs = LOOK_MS,
}: Given): Readiness => {
  /** The last check; another begins only when it has ended, so that a silent database keeps one connection. */
  let check: { at: number; isDone: boolean; fault: Promise<string | undefined> } | undefined
  let logged: string | undefined

  const begin = (connected: Database) => {
    const begun = { at: performance.now(), isDone: false, fault: databaseFault(connected) }
    begun.fault.finally(() => {
      begun.isDone = true
    })
    return begun
  }

  const ofDatabase = (connected: Database): Promise<string | undefined> => {
    if (!check || (check.isDone && performance.now() - check.at > ASKED_EACH_MS)) check = begin(connected)
    return Promise.race([check.fault, sleep(answersWithinMs, SILENT, { ref: false })])
  }

  const find = async (): Promise<string | undefined> => {
    const keyring = state.service?.tools.keyring
    const { database } = state
    const wrong = !database ? SILENT : wasFull(database) ? FULL : await ofDatabase(database)
    const unfit = wrong ?? state.fault?.() ?? keyring?.fault()
    if (unfit) return unfit
    if (!keyring) return 'the signing keys are not loaded yet'
    return state.isOpen ? undefined : 'it does not listen yet'
  }

  /** A start and a stop have lines of their own. */
  const tell = (fault: string | undefined): void => {
    if (fault === logged || !state.isOpen || state.isStopping) return
    if (fault) log.error({ reason: fault }, 'this process is not ready')
    else log.info('ready again')
    logged = fault
  }

  const fault = async (): Promise<string | undefined> => {
    if (state.isStopping) return 'shutting down'
    const found = await find()
    tell(found)
    return found
  }

  return { fault, stop: eachBeat(lookMs, () => void fault()) }
}

const databaseFault = async (connected: Database): Promise<string | undefined> => {
  try {
    const fault = await schemaFault(connected)
    if (fault) return fault
  } catch {
    return SILENT
  }
  return checkWritable(connected).then(
    () => undefined,
    error => (isFull(error) ? FULL : 'the database cannot be written'),
  )
}
