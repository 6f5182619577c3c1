import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { openCounters } from './database-counters.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { type Pace, startWorld } from './world.ts'

const WARM_UP_MS = 3_000

type Profile = {
  nodes: { id: number; callFrame: { functionName: string; url: string } }[]
  samples: number[]
  timeDeltas: number[]
}

/**
 * `node_modules/knex`, `server/delivery`, `node:net` `native writev`
 * or the engine’s own, such as `(garbage collector)`.
 */
const placeOf = ({ functionName, url }: { functionName: string; url: string }): string => {
  if (functionName.startsWith('(')) return functionName
  const [, ours] = /\/((?:server|shared)\/(?:[\w-]+(?=\/))?)/.exec(url) ?? []
  const [, dependency] = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url) ?? []
  if (dependency) return dependency
  if (ours) return ours.replace(/\/$/, '')
  return url.startsWith('node:') ? url.split('/').slice(0, 2).join('/') : `native ${functionName}`
}

/** Milliseconds of self time by place. */
const selfTimes = (profile: Profile): Map<string, number> => {
  const places = new Map(profile.nodes.map(({ id, callFrame }) => [id, placeOf(callFrame)]))
  const times = new Map<string, number>()
  for (const [n, id] of profile.samples.entries()) {
    const place = places.get(id)!
    times.set(place, (times.get(place) ?? 0) + profile.timeDeltas[n]! / 1000)
  }
  times.delete('(idle)')
  return times
}

/** A kind of statement: how often an event runs it, and milliseconds an event, waits for the disk included. */
export type Digest = { digest: string; n: number; ms: number }
type Counted = { digest: string | null; n: number; ms: number }
const DIGESTS = `SELECT digest_text AS digest, count_star AS n, sum_timer_wait / 1e9 AS ms
  FROM performance_schema.events_statements_summary_by_digest WHERE schema_name = DATABASE()`

export type EventCpu = {
  accepted: number
  /** CPU milliseconds an event; NaN for a database whose process is not visible. */
  server: number
  database: number
  /** The server's self time in milliseconds, by package and folder. */
  places: Map<string, number>
  /** Empty if the engine does not time its statements. */
  digests: Digest[]
}

/** Publishes events for some seconds under a sampling profiler. Rejects if the server cannot be profiled. */
export const measureEventCpu = async (
  engine: string,
  { seconds, pace }: { seconds: number; pace: Pace },
): Promise<EventCpu> => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-bench-'))
  const file = join(folder, 'profile')
  const world = await startWorld(engine, {
    env: {
      NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import=${new URL('profiler.ts', import.meta.url).href}`,
      BENCH_PROFILE_FILE: file,
    },
  })
  const counters = engine === 'sqlite' ? undefined : await openCounters(world.given.url)
  const databasePid = databasePidOf(world.given.url)
  const digests = async (): Promise<Counted[]> => (await counters?.ask<Counted>(DIGESTS).catch(() => [])) ?? []
  try {
    const warming = world.publish(pace)
    await wait(WARM_UP_MS)
    await warming()
    const { pid } = world.server()
    const cpu = () => [cpuMs(pid), databasePid ? cpuMs(databasePid) : Number.NaN] as const
    process.kill(pid, 'SIGUSR2')
    const before = new Map((await digests()).map(each => [each.digest, each]))
    const spent = cpu()
    const publishing = world.publish(pace)
    await wait(seconds * 1000)
    const { accepted } = await publishing()
    await world.settled()
    const [server, database] = cpu().map((ms, n) => (ms - spent[n]!) / accepted) as [number, number]
    const done = (await digests()).map(({ digest, n, ms }) => ({
      digest: digest ?? '(others)',
      n: (n - (before.get(digest)?.n ?? 0)) / accepted,
      ms: (ms - (before.get(digest)?.ms ?? 0)) / accepted,
    }))
    process.kill(pid, 'SIGUSR2')
    for (let n = 0; n < 100 && !existsSync(file); n++) await wait(100)
    await wait(500)
    const places = selfTimes(JSON.parse(readFileSync(file, 'utf8')))
    return { accepted, server, database, places, digests: done }
  } finally {
    await counters?.close()
    await world.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}
