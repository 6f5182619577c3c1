import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { it } from 'node:test'
import { findServer } from '../../scripts/database-server.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import type { Fault } from '../chaos/faults.ts'
import { type Chaos, runChaos } from '../chaos/run.ts'
import { createDatabase } from '../chaos/world.ts'
import { describeEachEngine, freshDatabase } from '../support/databases.ts'
import { atFullSize } from '../support/size.ts'

// The short version of `npm run chaos`: faults that are chosen, and waits as short as the lease lets them be.

const PAST_THE_LEASE_MS = 31_500

/** SQLite is for one process. */
const ofOneServer: Fault[] = [
  { target: 0, kind: 'kill', atMs: 1500, forMs: 0 },
  { target: 0, kind: 'freeze', atMs: 3500, forMs: 1000 },
  { target: 0, kind: 'kill', atMs: 5500, forMs: 200 },
]

/** By day one of three servers is missing, and what is done to it. */
const SERVERS = atFullSize(3, 2)
const ofSeveralServers: Fault[] = [
  { target: 0, kind: 'freeze', atMs: 1000, forMs: PAST_THE_LEASE_MS },
  { target: 1, kind: 'kill', atMs: 2000, forMs: 0 },
  ...atFullSize<Fault[]>([{ target: 2, kind: 'kill', atMs: 3500, forMs: 0 }], []),
]

const ofTheDatabase: Fault[] = [
  { target: 'database', kind: 'kill', atMs: 4500, forMs: 300 },
  { target: 'database', kind: 'freeze', atMs: 7500, forMs: 1000 },
]

/** A server to end and freeze, if one of the engine's kind can be started: the engine's own may be in use by others. */
const startInstance = (engine: string) => {
  const program = findServer()
  const kind = program && (path.basename(program).startsWith('mariadb') ? 'mariadb' : 'mysql')
  return kind && engine.startsWith(kind) ? startThrowAwayDatabase(program) : undefined
}

describeEachEngine('servers under load, killed and frozen, and a database that is restarted', engine => {
  it('lose nothing, double only what was in flight, keep the waits, and log the truth', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'tidings-chaos-'))
    const instance = engine === 'sqlite' ? undefined : await startInstance(engine)
    const fresh = await freshDatabase(engine)
    const chaos: Chaos = {
      databaseUrl: fresh.url,
      folder,
      seed: 1,
      servers: engine === 'sqlite' ? 1 : SERVERS,
      rate: 20,
      loadMs: atFullSize(30_000, 8_000),
      faults: engine === 'sqlite' ? ofOneServer : ofSeveralServers,
    }
    try {
      const { findings, figures } = await runChaos(
        instance
          ? {
              ...chaos,
              databaseUrl: await createDatabase(instance.url),
              instance,
              faults: [...chaos.faults, ...ofTheDatabase],
            }
          : chaos,
      )
      const wrong = [...findings].filter(([, offending]) => offending.length > 0)
      assert.deepEqual(Object.fromEntries(wrong), {}, JSON.stringify(figures))
      // TiDB has no shared locks, and keeps those of a dead process for 20 s: mutations wait for most of this time.
      const least = engine.startsWith('tidb') ? 3 : 60
      assert.ok(Number(figures.mutations) > least, `only ${figures.mutations} mutations`)
    } finally {
      await instance?.stop()
      await fresh.drop()
      await rm(folder, { recursive: true, force: true })
    }
  })
})
