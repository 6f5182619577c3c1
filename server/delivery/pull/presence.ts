import { eachBeat } from '../../beat.ts'
import type { Database } from '../../database/connect.ts'
import { type Clients, removeClients, writeClients } from '../../domain/pull-clients.ts'
import { type Log, logSeldom } from '../../log.ts'

/** How often it is looked whether clients wait for another webhook, which is written at once. */
const LOOK_MS = 1_000
/** How often other changes are written. While nothing changes, nothing is. */
const WRITE_MS = 10_000

/** Writes which clients wait at this process, so that every process can say so. */
export const recordClients = (given: {
  database: Database
  log: Log
  processId: string
  /** Who waits now, by webhook. */
  clients: () => Map<string, Clients>
}): { stop(): Promise<void> } => {
  const { database, log, processId, clients } = given
  let written = new Map<string, string>()
  let writtenAt = Number.NEGATIVE_INFINITY
  let writing: Promise<void> | undefined

  const write = async (now: Map<string, Clients>): Promise<void> => {
    const texts = new Map([...now].map(([id, one]) => [id, JSON.stringify(one)]))
    const changed = [...now].filter(([id]) => texts.get(id) !== written.get(id))
    const gone = [...written.keys()].filter(id => !now.has(id))
    await writeClients(database.knex, processId, changed)
    await removeClients(database.knex, processId, gone)
    written = texts
  }

  const look = (): void => {
    const now = clients()
    const isNew = [...now.keys()].some(id => !written.has(id))
    if (writing || (!isNew && performance.now() - writtenAt < WRITE_MS)) return
    writtenAt = performance.now()
    writing = write(now)
      .catch(error => logSeldom(log, 'warn', 'clients', { err: error }, 'it cannot be written which clients wait'))
      .finally(() => {
        writing = undefined
      })
  }

  const stopLooking = eachBeat(LOOK_MS, look)
  return {
    async stop() {
      stopLooking()
      await writing
      if (written.size > 0) await removeClients(database.knex, processId).catch(() => {})
    },
  }
}
