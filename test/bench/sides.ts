import { setTimeout as wait } from 'node:timers/promises'
import { between, type Counters, openCounters } from './database-counters.ts'
import { fixedWorkMs, median, quantile } from './figures.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { type Pace, startWorld, type World } from './world.ts'

// What an event costs on one engine: CPU of the server's processes and of the database's, statements, commits, rate and
// latency.

/** One engine's side of the benchmark. */
export type Side = { engine: string; world: World; counters?: Counters; databasePid?: number }

/** @param env settings of the server that differ from an operator's defaults */
export const startSide = async (engine: string, env: Record<string, string> = {}): Promise<Side> => {
  const world = await startWorld(engine, { env })
  if (engine === 'sqlite') return { engine, world }
  const counters = await openCounters(world.given.url)
  const databasePid = databasePidOf(world.given.url)
  return { engine, world, counters, ...(databasePid !== undefined && { databasePid }) }
}

/** The result of one round of one mode; unknown values are NaN. */
export type Round = Record<string, number>

/** One round: publishes for so long, and waits until all is delivered. */
export const measure = async ({ world, counters, databasePid }: Side, pace: Pace, seconds: number): Promise<Round> => {
  await world.settled()
  const serverPid = world.server().pid
  const cpu = () => ({ server: cpuMs(serverPid), database: databasePid ? cpuMs(databasePid) : Number.NaN })
  const [counted, spent] = [await counters?.read(), cpu()]
  const publishing = world.publish(pace)
  const works: number[] = []
  for (let second = 0; second < seconds; second++) {
    await wait(1000)
    works.push(fixedWorkMs())
  }
  const window = await publishing()
  await world.settled()
  const after = cpu()
  const done = counters && between(counted!, await counters.read())
  const each = (sum: number | undefined): number => (sum ?? Number.NaN) / window.accepted
  const server = each(after.server - spent.server)
  const database = each(after.database - spent.database)
  const kinds = Object.entries(done?.kinds ?? {}).map(([kind, count]) => [`kind ${kind}`, each(count)])
  return {
    server,
    database,
    together: counters ? server + database : server,
    statements: each(done?.statements),
    commits: each(done?.commits),
    logSyncs: each(done?.logSyncs),
    accepted: window.acceptedPerSecond,
    delivered: window.deliveredPerSecond,
    begunToAcknowledgedP50: quantile(window.begunToAcknowledged, 0.5),
    begunToAcknowledgedP99: quantile(window.begunToAcknowledged, 0.99),
    begunToReceivedP50: quantile(window.begunToReceived, 0.5),
    begunToReceivedP99: quantile(window.begunToReceived, 0.99),
    acknowledgedToReceivedP50: quantile(window.acknowledgedToReceived, 0.5),
    acknowledgedToReceivedP99: quantile(window.acknowledgedToReceived, 0.99),
    fixedWork: median(works),
    notDone: Object.values(window.refused).flat().length + window.unanswered + window.missing,
    ...Object.fromEntries(kinds),
  }
}
