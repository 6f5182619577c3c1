import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { openCounters } from './database-counters.ts'
import { show, table } from './figures.ts'
import { startWorld } from './world.ts'

// Where the CPU of an event goes: the server's by package and room, as its sampling profiler sees it, and the
// database's by kind of statement, as MySQL's performance schema times it (waits for the disk are in that). MariaDB has
// that schema off by default.
//
//   npm run bench -- profile [--engine mysql] [--seconds 5] [--in-flight 100]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    seconds: { type: 'string', default: '5' },
    'in-flight': { type: 'string', default: '100' },
  },
})
const WARM_UP_MS = 3_000
const SHOWN = 25
const DIGEST_SHOWN = 150

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

type Digest = { digest: string | null; n: number; ms: number }
const DIGESTS = `SELECT digest_text AS digest, count_star AS n, sum_timer_wait / 1e9 AS ms
  FROM performance_schema.events_statements_summary_by_digest WHERE schema_name = DATABASE()`

const profile = async (engine: string): Promise<void> => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-bench-'))
  const file = join(folder, 'profile')
  const world = await startWorld(engine, {
    env: {
      NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import=${new URL('profiler.ts', import.meta.url).href}`,
      BENCH_PROFILE_FILE: file,
    },
  })
  const counters = engine === 'sqlite' ? undefined : await openCounters(world.given.url)
  const digests = async (): Promise<Digest[]> => (await counters?.ask<Digest>(DIGESTS).catch(() => [])) ?? []
  try {
    const pace = { inFlight: Number(options['in-flight']) }
    const warming = world.publish(pace)
    await wait(WARM_UP_MS)
    await warming()
    const { pid } = world.server()
    process.kill(pid, 'SIGUSR2')
    const before = new Map((await digests()).map(each => [each.digest, each]))
    const publishing = world.publish(pace)
    await wait(Number(options.seconds) * 1000)
    const { accepted } = await publishing()
    const done = (await digests()).map(({ digest, n, ms }) => ({
      digest: digest ?? '(others)',
      n: (n - (before.get(digest)?.n ?? 0)) / accepted,
      ms: (ms - (before.get(digest)?.ms ?? 0)) / accepted,
    }))
    process.kill(pid, 'SIGUSR2')
    for (let n = 0; n < 100 && !existsSync(file); n++) await wait(100)
    await wait(500)
    const times = selfTimes(JSON.parse(readFileSync(file, 'utf8')))
    const sum = [...times.values()].reduce((a, b) => a + b, 0)
    const places = [...times].toSorted((a, b) => b[1] - a[1]).slice(0, SHOWN)
    console.log(pc.bold(`\n${engine}, ${accepted} events: the server's CPU`))
    const percent = (part: number): string => `${((100 * part) / sum).toFixed(1)} %`
    console.log(table(places.map(([place, ms]) => [place, percent(ms), `${show(ms / accepted)} ms an event`])))
    if (done.length === 0) return
    console.log(pc.bold("the database's time"))
    const most = done.toSorted((a, b) => b.ms - a.ms).slice(0, SHOWN)
    const rows = most.map(({ digest, n, ms }) => [digest.slice(0, DIGEST_SHOWN), show(n), show(ms)])
    console.log(table([['statement', 'an event', 'ms an event'], ...rows]))
  } finally {
    await counters?.close()
    await world.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

for (const engine of engines) if (engine.startsWith(options.engine)) await profile(engine)
