import { noteUnnoted, type Position } from '../domain/unnoted.ts'
import type { Step } from './step.ts'

/** Notes what a process of an earlier version has dropped of webhooks that heal themselves. */
export const noteDropped: Step = {
  name: 'note what was dropped',
  everyMs: 600_000,
  largestPart: 1 / 10,
  begin({ database, clock }) {
    let after: Position | undefined = { since: Number.MIN_SAFE_INTEGER, id: '' }
    return async () => {
      after = after && (await noteUnnoted(database, after, clock.now()))
      return after !== undefined
    }
  },
}
