import { fork } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Aftercare } from '../../scripts/aftercare.js'
import type { ThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { rows } from '../../server/database/connect.ts'
import { LEASE_MS } from '../../server/delivery/leases.ts'
import { parseRetrySchedule } from '../../shared/retry-schedule.ts'
import { type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { type Pace, paceOf, slowerBy } from '../support/pace.ts'
import { openArrivals } from './arrivals.ts'
import { endpoints } from './endpoints.ts'
import type { Disturbance, Fault } from './faults.ts'
import { checkAll, type Figures, type Findings, type ServerLog } from './invariants.ts'
import { startLoad, type Target } from './load.ts'
import type { FromReceivers, ToReceivers } from './receivers.ts'
import { time } from './timeline.ts'
import { createWorld } from './world.ts'

export type Chaos = {
  /** An empty database, as `TIDINGS_DATABASE_URL` names it. */
  databaseUrl: string
  /** The server that it is on, if that may be ended and frozen. */
  instance?: Pick<ThrowAwayDatabase, 'signal' | 'start'>
  /** A folder for what the run writes down. */
  folder: string
  seed: number
  servers: number
  /** Mutations a second. */
  rate: number
  loadMs: number
  /** Those of one target one after the other. */
  faults: Fault[]
  /** Sees to it that no process outlives the run. */
  care?: Pick<Aftercare, 'include' | 'exclude'>
  onProgress?: (line: string) => void
}

const ISSUER = 'https://tidings.example'
const SCHEDULE = '0.4,0.8,1.6,3.2'
const ATTEMPT_MS = 15_000
/** How long after the load's end mutations may still be answered. */
const GIVE_UP_MS = 30_000
const PROGRESS_EVERY_MS = 10_000
/** How long the after-effects of a database outage last, while connections are made anew. */
const RECOVERY_MS = 2_000

/** A process that looks each so often and comes this late stood still, and others of its machine with it. */
const LOOK_EACH_MS = 25
const STOOD_STILL_MS = 150

/** A server by its number: the same place, whichever process fills it. */
type Slot = Target & { number: number; process: ServerProcess | undefined }

/**
 * Runs servers under load with faults of the servers, their database and their endpoints; waits for the pending
 * deliveries; then checks the invariants.
 */
export const runChaos = async (chaos: Chaos): Promise<{ findings: Findings; figures: Figures }> => {
  const { databaseUrl, instance, folder, seed, servers, rate, loadMs, faults } = chaos
  const scheduleMs = parseRetrySchedule(SCHEDULE)
  const startedAt = Date.now()
  const file = path.join(folder, 'arrivals.sqlite')
  const receivers = await startReceivers(file, seed)
  chaos.care?.include(receivers.pid)
  const world = await createWorld(
    databaseUrl,
    endpoints.map((endpoint, index) => ({ ...endpoint, url: receivers.urls[index]! })),
  )
  receivers.send({ keys: world.keys, issuer: ISSUER })
  const disturbances: Disturbance[] = []
  const stalls = watchStalls()
  const pace = watchPace(() => slots.flatMap(({ process }) => process?.pid ?? []))
  const logs: ServerLog[] = []
  const slots: Slot[] = Array.from({ length: servers }, (_, number) => ({
    number,
    url: '',
    avoidUntil: Number.POSITIVE_INFINITY,
    process: undefined,
  }))

  const start = async (slot: Slot): Promise<void> => {
    const process = await startServerProcess(databaseUrl, {
      TIDINGS_ROLES: 'api,delivery,scheduler',
      TIDINGS_ISSUER_URL: ISSUER,
      TIDINGS_RETRY_SCHEDULE: SCHEDULE,
      TIDINGS_RATE_LIMIT: '0',
    })
    chaos.care?.include(process.pid)
    Object.assign(slot, { process, url: process.url, avoidUntil: 0 })
  }

  const end = async (slot: Slot, signal: 'SIGKILL' | 'SIGTERM'): Promise<void> => {
    const { process } = slot
    if (!process) return
    slot.avoidUntil = Number.POSITIVE_INFINITY
    slot.process = undefined
    const ended = await process.end(signal)
    chaos.care?.exclude(process.pid)
    const isExpected = signal === 'SIGKILL' ? ended.signal === 'SIGKILL' : ended.code === 0
    logs.push({
      server: slot.number,
      endedAt: Date.now(),
      ended: isExpected
        ? undefined
        : `server ${slot.number} on ${signal} at ${time(Date.now())}: code ${ended.code}, signal ${ended.signal}`,
      lines: process.log().split('\n').filter(Boolean),
    })
  }

  const happen = async (fault: Fault): Promise<void> => {
    const { kind, target, forMs } = fault
    const disturbance: Disturbance = { ...fault, from: Date.now(), to: Number.POSITIVE_INFINITY }
    disturbances.push(disturbance)
    if (target === 'database') {
      await instance!.signal(kind === 'freeze' ? 'SIGSTOP' : kind === 'kill' ? 'SIGKILL' : 'SIGTERM')
      await wait(forMs)
      await (kind === 'freeze' ? instance!.signal('SIGCONT') : instance!.start())
      disturbance.to = Date.now() + RECOVERY_MS
      return
    }
    const slot = slots[target]!
    if (kind === 'freeze') {
      process.kill(slot.process!.pid, 'SIGSTOP')
      await wait(forMs)
      process.kill(slot.process!.pid, 'SIGCONT')
      disturbance.to = Date.now() + RECOVERY_MS
      return
    }
    await end(slot, kind === 'kill' ? 'SIGKILL' : 'SIGTERM')
    disturbance.to = Date.now()
    await wait(forMs)
    await start(slot)
  }

  /** The faults of one target, one after the other. */
  const happenInTurn = async (target: Fault['target'], since: number): Promise<void> => {
    for (const fault of faults.filter(it => it.target === target)) {
      await wait(Math.max(0, since + fault.atMs - Date.now()))
      await happen(fault)
    }
  }

  const owed = async (): Promise<number> => {
    const [found] = await rows<{ n: number }>(world.database.knex, 'SELECT COUNT(*) AS n FROM delivery_queue')
    return Number(found!.n)
  }

  try {
    await Promise.all(slots.map(start))
    const load = startLoad({ world, rate, seed, targets: () => slots })
    const since = Date.now()
    const progress = setInterval(async () => {
      const queue = await owed().catch(() => 'unknown')
      const happened = disturbances.length
      const now = disturbances.filter(it => it.to === Number.POSITIVE_INFINITY).map(it => `${it.target} ${it.kind}`)
      chaos.onProgress?.(
        `${seconds(since)} s: ${load.result.submitted.size + load.result.approved.size} mutations, ` +
          `${receivers.arrived()} requests arrived, ${queue} owed, ${happened} of ${faults.length} ` +
          `faults${now.length > 0 ? ` (${now.join(', ')})` : ''}`,
      )
    }, PROGRESS_EVERY_MS)
    try {
      const happening = [...slots.keys(), 'database' as const].map(target => happenInTurn(target, since))
      await Promise.all([wait(loadMs).then(() => load.stop(GIVE_UP_MS)), ...happening])
      receivers.send('calm')
      const calmSince = Date.now()
      const drainMs = LEASE_MS + 2 * ATTEMPT_MS + scheduleMs.reduce((sum, ms) => sum + ms) + 30_000
      while ((await owed()) > 0 && Date.now() - calmSince < drainMs) await wait(250)
      chaos.onProgress?.(`${seconds(since)} s: calm for ${seconds(calmSince)} s, ${await owed()} owed`)
    } finally {
      clearInterval(progress)
    }
    await Promise.all(slots.map(slot => end(slot, 'SIGTERM')))
    await receivers.finish()
    const arrivals = openArrivals(file)
    try {
      const given = {
        world,
        arrivals,
        disturbances: [...disturbances, ...stalls.found],
        scheduleMs,
        load: load.result,
        servers: logs,
        slowerBy: pace.slowerBy(),
      }
      const { findings, figures } = await checkAll(given)
      if ([...findings.values()].some(wrong => wrong.length > 0)) {
        for (const it of disturbances) {
          chaos.onProgress?.(
            `${time(it.from)} to ${time(it.to)}: ${it.target === 'database' ? '' : 'server '}${it.target} ${it.kind}`,
          )
        }
      }
      const faultsBy = Map.groupBy(disturbances, it => `${it.target === 'database' ? 'database' : 'server'} ${it.kind}`)
      const happened = [...faultsBy].map(([name, list]) => `${list.length} × ${name}`).join(', ')
      return { findings, figures: { 'seconds in all': seconds(startedAt), faults: happened || 'none', ...figures } }
    } finally {
      arrivals.close()
    }
  } finally {
    stalls.end()
    pace.end()
    for (const { process } of slots) await process?.end('SIGKILL')
    receivers.stop()
    await world.database.close()
  }
}

/** What a machine that has much else to do does to all at once, as a disturbance of everything. */
const watchStalls = () => {
  const found: Disturbance[] = []
  let lastAt = Date.now()
  const timer = setInterval(() => {
    const from = lastAt
    lastAt = Date.now()
    const lateMs = lastAt - from - LOOK_EACH_MS
    if (lateMs < STOOD_STILL_MS) return
    found.push({ target: 'database', kind: 'freeze', atMs: 0, forMs: lateMs, from, to: lastAt + RECOVERY_MS })
  }, LOOK_EACH_MS)
  return { found, end: () => clearInterval(timer) }
}

const PACE_EACH_MS = 250

/** How much slower than alone processes were, each as it was last seen. */
const watchPace = (pids: () => number[]) => {
  const paces = new Map<number, Pace>()
  const timer = setInterval(() => {
    for (const pid of pids()) {
      const pace = paceOf(pid)
      if (pace.ran > 0) paces.set(pid, pace)
    }
  }, PACE_EACH_MS)
  return { slowerBy: () => slowerBy(paces.values()), end: () => clearInterval(timer) }
}

const seconds = (since: number): number => Math.round((Date.now() - since) / 1000)

const startReceivers = async (file: string, seed: number) => {
  const child = fork(fileURLToPath(new URL('receivers.ts', import.meta.url)), [file, String(seed)], {
    execArgv: ['--disable-warning=ExperimentalWarning'],
  })
  let arrived = 0
  const urls = await new Promise<string[]>((resolve, reject) => {
    child.once('exit', code => reject(new Error(`The endpoints' process ended with ${code}`)))
    child.on('message', (message: FromReceivers) => {
      if (message === 'finished') return
      if ('urls' in message) resolve(message.urls)
      else arrived = message.arrived
    })
  })
  return {
    urls,
    pid: child.pid!,
    arrived: () => arrived,
    send: (message: ToReceivers) => void child.send(message),
    async finish() {
      child.send('finish' satisfies ToReceivers)
      await once(child, 'exit')
    },
    stop: () => void child.kill(),
  }
}
