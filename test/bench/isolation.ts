import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import type { Ask, Struck } from './attacker.ts'
import { startChild } from './child.ts'
import { type Counters, openCounters } from './database-counters.ts'
import { attacks, type Prey } from './documents.ts'
import { median, quantile, show, table } from './figures.ts'
import { seedPrey } from './prey.ts'
import { cpuMs, databasePidOf, memoryByProcess, memoryMb, ownCpuMs, resetPeak } from './processes.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// Measures the effect of the worst requests on everybody else: one document after the other, beside 100 deliveries a
// second of another tenant in the same process. A server that dies or is silent for too long is restarted, and the
// table says so.
//
// npm run bench -- isolation [--engine sqlite] [--only '45 ×'] [--deliveries 1000000 --users 200000] [--rate 100]
//     [--window 3] [--patience 10] [--apart]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    /** Parts of attacks' names, separated by |. */
    only: { type: 'string', default: '' },
    deliveries: { type: 'string', default: '20000' },
    users: { type: 'string', default: '20000' },
    rate: { type: 'string', default: '100' },
    /** Seconds for which an attack is repeated. */
    window: { type: 'string', default: '3' },
    /** Seconds until a client that has no answer goes. */
    patience: { type: 'string', default: '10' },
    /** The server and its readers on one core, and who asks, publishes and receives on another (Linux). */
    apart: { type: 'boolean', default: false },
  },
})
const WINDOW_MS = Number(options.window) * 1000
const PATIENCE_MS = Number(options.patience) * 1000
const RATE = Number(options.rate)
const BASE_MS = unlessSmallest(5_000, 500)
/** A server that is silent for this long after its clients have left is killed. */
const GRACE_MS = 5_000
/** A statement still running this long after its client left counts as left behind. */
const RUNS_ON_MS = 2_000

// Where all share the cores, "twice" alone would measure the machine: an attacker takes CPU from everybody.
const GOAL = { silenceMs: 50, memoryMb: 100, ...(options.apart ? { times: 1.3, plusMs: 0 } : { times: 2, plusMs: 50 }) }
const mostP99 = (baseMs: number): number => GOAL.times * baseMs + GOAL.plusMs

const pin = (pid: number, core: number): void =>
  void execFileSync('taskset', ['--all-tasks', '--cpu-list', '--pid', String(core), String(pid)])
/** The processes that the server starts later inherit its core. */
const pinServer = ({ pid }: { pid: number }): void => {
  if (options.apart) for (const each of memoryByProcess(pid).keys()) pin(each, 0)
}

/** The result of an attack beside the steady load. */
type Finding = {
  name: string
  answer: string
  tookMs: number | undefined
  bytes: number
  silenceMs: number
  lagMs: number
  /** Of the processes that were there before. */
  memoryMb: number
  /** Of readers that started meanwhile: their own, and what they held. */
  startedMb: number
  p99: number
  lost: number
  /** Of a core, in percent: the server's process, its readers, the database, and all that ask, publish and receive. */
  cpu: { server: number; readers: number; database: number; clients: number }
  afterwards: string
}

const isolate = async (engine: string): Promise<void> => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-bench-'))
  const lagFile = join(folder, 'lag')
  if (options.apart) pin(process.pid, 1)
  const world = await startWorld(engine, {
    env: {
      NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import=${new URL('loop-lag.ts', import.meta.url).href}`,
      BENCH_LOOP_LAG_FILE: lagFile,
    },
  })
  const livez = await startChild('livez.ts')
  const attacker = await startChild('attacker.ts')
  const counters = engine === 'sqlite' ? undefined : await openCounters(world.given.url)
  const databasePid = databasePidOf(world.given.url)
  const spent = () => {
    const { pid } = world.server()
    const [tree, server] = [cpuMs(pid), ownCpuMs(pid)]
    const database = databasePid === undefined ? 0 : cpuMs(databasePid)
    return { server, readers: tree - server, database, clients: cpuMs(process.pid) - tree, at: performance.now() }
  }
  const longestSilence = async (): Promise<number> => (await livez.ask({ url: world.server().url })) as number
  const strike = async (prey: Prey, name: string) => {
    const { url } = world.server()
    const ask: Ask = { prey, name, url, windowMs: WINDOW_MS, patienceMs: PATIENCE_MS }
    const struck = (await attacker.ask(ask)) as Struck
    for (const fault of struck.faults) console.log(pc.dim(`  ${fault}`))
    return struck
  }
  try {
    const since = Date.now()
    const prey = await seedPrey(world, { deliveries: Number(options.deliveries), users: Number(options.users) })
    console.log(
      `${engine}: ${options.deliveries} deliveries and ${options.users} users in ` +
        `${show((Date.now() - since) / 1000)} s`,
    )
    await restart(world)
    await longestSilence()
    const findings: Finding[] = []
    const beside = async (name: string, work: () => Promise<Omit<Struck, 'faults'>>) => {
      const { pid } = world.server()
      const before = memoryByProcess(pid)
      resetPeak(pid)
      writeFileSync(lagFile, '')
      await longestSilence()
      const publishing = world.publish({ rate: RATE })
      const spentBefore = spent()
      const { answer, tookMs, bytes } = await work()
      const spentAfter = spent()
      const goneAt = performance.now()
      const window = await publishing()
      const memory = memoryByProcess(pid)
      const silenceMs = await longestSilence()
      const lags = readFileSync(lagFile, 'utf8').split('\n').filter(Boolean)
      const p99 = quantile(window.begunToReceived, 0.99)
      const left = await afterwards(world, counters, goneAt)
      const finding = {
        name,
        answer,
        tookMs,
        bytes,
        silenceMs,
        // A blocked event loop has not written its lag.
        lagMs: left.endsWith(ENDED)
          ? Number.NaN
          : lags.reduce((most, line) => Math.max(most, Number(line.split(' ')[1])), 0),
        ...growth(pid, before, memory),
        p99,
        lost: window.missing + window.unanswered,
        cpu: share(spentBefore, spentAfter),
        afterwards: left,
      }
      findings.push(finding)
      console.log(line(finding, findings[0]!.p99).join('  '))
      return finding
    }
    const nothing = async () => {
      await wait(BASE_MS)
      return { answer: '', tookMs: undefined, bytes: 0 }
    }
    // A process that has just started is slower, and its memory still grows.
    const warming = world.publish({ rate: RATE })
    await wait(WINDOW_MS)
    await warming()
    await beside('nothing', nothing)
    for (const attack of attacks(prey)) {
      if (options.only.split('|').some(part => attack.name.includes(part)))
        await beside(attack.name, () => strike(prey, attack.name))
    }
    await beside('nothing again', nothing)
    report(engine, findings)
  } finally {
    attacker.stop()
    livez.stop()
    await counters?.close()
    await world.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

const restart = async (world: World): Promise<void> => {
  await world.restart()
  pinServer(world.server())
}

type Memory = ReturnType<typeof memoryByProcess>

const growth = (pid: number, before: Memory, after: Memory): Pick<Finding, 'memoryMb' | 'startedMb'> => {
  if (!after.has(pid)) return { memoryMb: Number.NaN, startedMb: Number.NaN }
  let memoryMb = 0
  let startedMb = 0
  for (const [each, { peak }] of after) {
    const known = before.get(each)
    if (known) memoryMb += peak - known.now
    else startedMb += peak
  }
  return { memoryMb, startedMb }
}

type Spent = Finding['cpu'] & { at: number }

const share = (before: Spent, after: Spent): Finding['cpu'] => {
  const percent = (who: keyof Finding['cpu']) =>
    Math.round((100 * Math.max(0, after[who] - before[who])) / (after.at - before.at))
  return {
    server: percent('server'),
    readers: percent('readers'),
    database: percent('database'),
    clients: percent('clients'),
  }
}

const DIED = 'the server DIED'
const ENDED = 'KILLED'

/**
 * What is left when all clients have gone: running statements, or a server that is busy, silent or dead. Ensures that a
 * server runs.
 */
const afterwards = async (world: World, counters: Counters | undefined, goneAt: number): Promise<string> => {
  const { pid, url } = world.server()
  await wait(Math.max(0, RUNS_ON_MS - (performance.now() - goneAt)))
  const left: string[] = []
  const running =
    (await counters?.ask<{ id: number }>(
      `SELECT id FROM information_schema.processlist
       WHERE db = DATABASE() AND command NOT IN ('Sleep', 'Daemon') AND id <> CONNECTION_ID()
         AND time >= ${RUNS_ON_MS / 1000 - 1}`,
    )) ?? []
  if (running.length > 0) left.push(`statements that run on: ${running.length}`)
  // Resets the measurement for the next document.
  for (const { id } of running) await counters?.ask(`KILL QUERY ${id}`).catch(() => {})
  if (!memoryMb(pid)) {
    await restart(world)
    return DIED
  }
  const spent = cpuMs(pid)
  await wait(500)
  const busy = (cpuMs(pid) - spent) / 500
  if (busy > 0.3) left.push(`works on (${Math.round(100 * busy)} % CPU)`)
  const answers = await fetch(new URL('/livez', url), { signal: AbortSignal.timeout(GRACE_MS) }).then(
    () => true,
    () => false,
  )
  if (answers) {
    await world.settled(GRACE_MS).catch(() => left.push('deliveries queued'))
    return left.join(', ')
  }
  const isDead = !memoryMb(pid)
  await restart(world)
  return [...left, isDead ? DIED : `silent for ${GRACE_MS / 1000} s more: ${ENDED}`].join(', ')
}

const red = (text: string, isTooMuch: boolean): string => (isTooMuch ? pc.red(text) : text)

const line = (finding: Finding, baseP99: number): string[] => {
  const { name, answer, tookMs, bytes, silenceMs, lagMs, memoryMb, startedMb, p99, lost, cpu, afterwards } = finding
  return [
    name,
    answer,
    tookMs === undefined ? '' : show(tookMs),
    bytes > 100_000 ? `${show(bytes / 1_000_000)} MB` : '',
    red(show(silenceMs), silenceMs > GOAL.silenceMs),
    red(show(lagMs), lagMs > GOAL.silenceMs),
    red(Number.isNaN(memoryMb) ? 'all' : `+${Math.round(memoryMb)}`, !(memoryMb <= GOAL.memoryMb)),
    startedMb > 0 ? `+${Math.round(startedMb)}` : '',
    red(`${show(p99)} (${show(p99 / baseP99)} ×)`, p99 > mostP99(baseP99)),
    red(lost === 0 ? '' : String(lost), lost > 0),
    [cpu.server, cpu.readers, cpu.database, cpu.clients].join(' + '),
    red(afterwards, afterwards !== ''),
  ]
}

const HEADING = [
  `beside ${RATE} deliveries a second`,
  'answers',
  'first ms',
  'bytes',
  '/livez silent ms',
  'loop held ms',
  'memory MB',
  'readers started MB',
  "others' p99 ms",
  'lost',
  '% CPU of server + readers + database + clients',
  'afterwards',
]

const report = (engine: string, findings: Finding[]): void => {
  const base = findings[0]!
  const rows = findings.map(finding => line(finding, base.p99))
  console.log(
    `\n${pc.bold(engine)}: red is past the goals (silence ${GOAL.silenceMs} ms, memory +${GOAL.memoryMb} MB, ` +
      `p99 ${GOAL.times} × + ${GOAL.plusMs} ms)`,
  )
  console.log(table([HEADING.map(text => pc.bold(text)), ...rows], { textColumns: 2 }))
  const past = findings.filter(
    ({ silenceMs, memoryMb, p99 }) =>
      silenceMs > GOAL.silenceMs || !(memoryMb <= GOAL.memoryMb) || p99 > mostP99(base.p99),
  )
  console.log(
    `${past.length} of ${findings.length} past a goal; median of the silences ` +
      `${show(median(findings.map(({ silenceMs }) => silenceMs)))} ms`,
  )
}

for (const engine of engines) if (engine.startsWith(options.engine)) await isolate(engine)
