import { rest } from '../beat.ts'
import { expireTokens } from './expiry.ts'
import { countHours } from './hours.ts'
import {
  deleteAuditEntries,
  deleteKeys,
  deleteLines,
  deleteSignatures,
  deleteVersions,
  forgetSignaturesUsed,
  takeBackDeliveries,
  tidyKeys,
} from './leftovers.ts'
import { emitOverdue } from './overdue.ts'
import { endDeleted, purge } from './purge.ts'
import { openOwedReports } from './reports.ts'
import type { Step, Tools } from './step.ts'
import { noteDropped } from './unnoted.ts'

const allSteps: readonly Step[] = [
  openOwedReports,
  emitOverdue,
  expireTokens,
  forgetSignaturesUsed,
  deleteSignatures,
  deleteKeys,
  deleteAuditEntries,
  tidyKeys,
  deleteLines,
  deleteVersions,
  takeBackDeliveries,
  noteDropped,
  purge,
  countHours,
  endDeleted,
]

/**
 * The work that time brings. Each step has its own timer, and any number of processes run it at once: the changes of a
 * batch and their events are one transaction that locks its rows. The batches of a process take turns on one
 * connection, and each step rests after a batch, so that deliveries come first.
 */
export const startScheduler = (tools: Tools, steps = allSteps): { stop(): Promise<void> } => {
  const stopping = new AbortController()
  const { signal } = stopping
  const inTurn = turns()
  const keep = async (step: Step): Promise<void> => {
    while (!signal.aborted) {
      await round(step, tools, async batch => {
        const isMore = await inTurn(async () => {
          const startedAt = performance.now()
          const more = !signal.aborted && (await batch())
          return { more, tookMs: performance.now() - startedAt }
        })
        if (isMore.more) await rest(isMore.tookMs * (1 / step.largestPart - 1), signal)
        return isMore.more && !signal.aborted
      })
      await rest(step.everyMs, signal)
    }
  }
  const kept = Promise.all(steps.map(keep))
  return {
    async stop() {
      stopping.abort()
      await kept
    },
  }
}

/** Runs all steps once, without rests, until nothing is left. */
export const runSchedule = async (tools: Tools): Promise<void> => {
  for (const step of allSteps) await round(step, tools, batch => batch())
}

type Batch = () => Promise<boolean>

/** A failed batch is tried again in the step's next round. */
const round = async (step: Step, tools: Tools, once: (batch: Batch) => Promise<boolean>): Promise<void> => {
  try {
    const batch = step.begin(tools)
    while (await once(batch));
    tools.onStep?.(step.name, true)
  } catch (error) {
    tools.onStep?.(step.name, false)
    tools.log.error({ err: error, step: step.name }, 'the schedule could not be kept; trying again')
  }
}

/** Runs each function after the ones before it. */
const turns = () => {
  let last: Promise<unknown> = Promise.resolve()
  return <T>(work: () => Promise<T>): Promise<T> => {
    const done = last.then(work)
    last = done.catch(() => {})
    return done
  }
}
