import type { DatabaseProxy } from '../proxy.ts'
import { atMost } from './stage.ts'

/** Periodic statements of a process: of its clock, its pool, its keys, its clients that wait, and of its readiness. */
const OWN = new RegExp(
  [
    'TIMESTAMPDIFF',
    String.raw`^\s*SET SESSION`,
    String.raw`SELECT VERSION\(\)`,
    String.raw`^\s*SELECT 1\s*;?\s*$`,
    'FROM signing_keys',
    String.raw`\bpull_clients\b`,
    'FROM knex_migrations',
    // The row that is written and deleted to see that the database can be written.
    "used_signatures.*'check ",
  ].join('|'),
  'i',
)
/** The concurrent action may wait for a lock of the held statement, which is released after this time. */
const MEANWHILE_MS = 2_000
const MOST_STEPS = 60

/** Both results. `hadHappened`: the concurrent action finished before the other continued. */
export type Result = { acted: unknown; happened: unknown; hadHappened: boolean }

export type Steps = {
  /** How many statements there were to stop at. */
  steps: number
  /** What was wrong, with the statement that stood still. */
  wrong: string[]
}

/**
 * Repeats an action, each time stopped at its next statement while another action runs, so that the other comes between
 * every two of its steps, whatever its statements are. It must be the only user of `by`.
 */
export const atEachStatement = async <T>(
  by: DatabaseProxy,
  round: {
    prepare: () => Promise<T>
    act: (given: T) => Promise<unknown>
    meanwhile: (given: T) => Promise<unknown>
    /**
     * What is wrong; undefined if nothing is. `hadHappened`: what was to happen meanwhile was done before the other
     * went on.
     */
    check: (
      given: T,
      result: { acted: unknown; happened: unknown; hadHappened: boolean },
    ) => Promise<string | undefined>
    /** Where it begins to be of interest, if not at its first statement. */
    from?: RegExp
    meanwhileMs?: number
    /** Stands still when the database has answered, and not before it was asked. */
    answer?: boolean
  },
): Promise<Steps> => {
  const wrong: string[] = []
  const options = { answer: round.answer ?? false }
  for (let step = 1; step <= MOST_STEPS; step++) {
    const given = await round.prepare()
    let n = 0
    let hasBegun = round.from === undefined
    const hold = by.hold(text => {
      if (OWN.test(text)) return false
      hasBegun ||= round.from!.test(text)
      if (hasBegun) n += 1
      return hasBegun && n === step
    }, options)
    const acting = round.act(given)
    const held = await Promise.race([hold.caught, acting.then(() => undefined)])
    const happening = round.meanwhile(given)
    const hadHappened =
      held !== undefined &&
      (await atMost(
        round.meanwhileMs ?? MEANWHILE_MS,
        happening.then(() => true),
      )) === true
    hold.end()
    const [acted, happened] = await Promise.all([acting, happening])
    const found = await round.check(given, { acted, happened, hadHappened })
    if (found) wrong.push(`${found} [at ${step}: ${held ? held.text.replaceAll(/\s+/g, ' ').slice(0, 50) : 'its end'}]`)
    if (!held) return { steps: step - 1, wrong }
  }
  return { steps: MOST_STEPS, wrong }
}

export const shown = ({ steps, wrong }: Steps): string =>
  `wrong at ${wrong.length} of ${steps} statements${wrong.length > 0 ? `: ${wrong.slice(0, 2).join('; ')}` : ''}`
