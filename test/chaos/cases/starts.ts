import type { DatabaseProxy } from '../proxy.ts'
import type { Server } from '../stage/processes.ts'
import { type Stage, within } from '../stage/stage.ts'
import { type Case, SHARED } from './case.ts'

// A process that starts or stops is cut off, held up or frozen at each of its statements that lock or write, while
// another one starts. No lock of the first may keep the second for longer than sessions last.

const LOCKING = /\b(FOR UPDATE|LOCK IN SHARE MODE|INSERT|UPDATE|DELETE|COMMIT|ROLLBACK|BEGIN)\b/i
const VALUES = /'[^']*'|\b\d+\b/g
const FAULTS = ['cut', 'held', 'frozen'] as const
/** Sessions last 15 s, a wait for a lock 10 s; then a process has to start. */
const LOCKED_MS = 25_000
const READY_AGAIN_MS = 45_000

type Fault = (typeof FAULTS)[number]
type Phase = 'start' | 'stop'

const shapeOf = (text: string): string => text.replaceAll(VALUES, '?').slice(0, 120)

/** The statements of a start and of a stop that lock or write. */
const statementsOf = async (stage: Stage, proxy: DatabaseProxy): Promise<Record<Phase, string[]>> => {
  const seen = { start: new Set<string>(), stop: new Set<string>() }
  let phase: Phase = 'start'
  const unwatch = proxy.watch(text => {
    if (LOCKING.test(text)) seen[phase].add(shapeOf(text))
  })
  const server = await stage.server({ by: proxy, roles: ROLES })
  phase = 'stop'
  server.signal('SIGTERM')
  await server.ended
  unwatch()
  return { start: [...seen.start], stop: [...seen.stop] }
}

const ROLES = 'api,delivery,scheduler'

/** `startMs`: how long a start without a fault takes on this machine. */
type Meeting = { phase: Phase; shape: string; fault: Fault; startMs: number }

/** Whether the other process became ready in time, and the first one after the fault; undefined if it was not met. */
const meet = async (stage: Stage, { phase, shape, fault, startMs }: Meeting): Promise<string | undefined> => {
  const proxy = await stage.proxy()
  const hold = (): ReturnType<DatabaseProxy['hold']> =>
    proxy.hold(text => shapeOf(text) === shape, { answer: fault === 'frozen' })
  let met = phase === 'start' ? hold() : undefined
  const first = await stage.serverStarting({ by: proxy, roles: ROLES })
  if (phase === 'stop') {
    await first.untilReady(READY_AGAIN_MS)
    met = hold()
    first.signal('SIGTERM')
  }
  const isMet = await within(READY_AGAIN_MS, () => met!.count() > 0)
  if (isMet && fault === 'cut') {
    proxy.cut()
    met!.end()
  }
  if (isMet && fault === 'frozen') first.signal('SIGSTOP')
  const other = await stage.serverStarting({ roles: ROLES })
  const at = Date.now()
  const isOtherReady = await within(LOCKED_MS + 2 * startMs, other.isReady)
  const readyMs = Date.now() - at
  if (fault === 'frozen') first.signal('SIGCONT')
  met!.end()
  const isFirstWell = await (phase === 'stop'
    ? within(READY_AGAIN_MS, () => first.hasEnded() !== undefined)
    : within(READY_AGAIN_MS, first.isReady))
  const told = fateOf(first, phase, isFirstWell)
  for (const each of [first, other]) if (!each.hasEnded()) each.signal('SIGKILL')
  await Promise.all([first.ended, other.ended])
  if (!isMet) return undefined
  return isOtherReady && isFirstWell ? `ok ${readyMs}` : `the other ${isOtherReady} after ${readyMs} ms, ${told}`
}

const fateOf = (first: Server, phase: Phase, isWell: boolean): string => {
  const end = first.hasEnded()
  if (isWell) return 'the first well'
  const how = end ? `ended with ${end.code}` : `is not ${phase === 'start' ? 'ready' : 'at its end'}`
  return `the first ${how}: ${first.stderr().slice(-300)}`
}

const startMeetings: Case = {
  name: 'start-statements',
  says: 'A process cut off, held up or frozen at a statement of its start or stop keeps no other from starting',
  engines: SHARED,
  async run(stage) {
    const at = performance.now()
    const statements = await statementsOf(stage, await stage.proxy())
    const startMs = performance.now() - at
    stage.say(`${statements.start.length} statements of a start, ${statements.stop.length} of a stop`)
    const wrong: string[] = []
    let met = 0
    let slowestMs = 0
    const most = stage.size(1_000)
    for (const phase of ['start', 'stop'] as const) {
      for (const shape of statements[phase].slice(0, most)) {
        for (const fault of FAULTS) {
          const found = await meet(stage, { phase, shape, fault, startMs })
          stage.say(`${phase} ${fault} ${shape.slice(0, 60).replaceAll(/\s+/g, ' ')}: ${found ?? 'not met'}`)
          if (found === undefined) continue
          met += 1
          if (found.startsWith('ok ')) slowestMs = Math.max(slowestMs, Number(found.slice(3)))
          else wrong.push(`${phase} ${fault} ${shape}: ${found}`)
        }
      }
    }
    stage.expect('faults were met', met >= FAULTS.length * 3, `${met}`)
    const seen = wrong.join('; ') || `at the latest after ${slowestMs} ms`
    stage.expect('another process was ready, and then the first', wrong.length === 0, seen)
  },
}

export const startCases = [startMeetings]
