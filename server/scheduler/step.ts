import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import type { Log } from '../log.ts'

export type Tools = {
  database: Database
  clock: Clock
  log: Log
  reportDueDays: number
  retentionDays: number
  /** By default 90. */
  auditDays?: number
  /** Called when events were written. */
  onEvents: () => void
  /** Called for each step whose round has ended or failed. */
  onStep?: (name: string, isDone: boolean) => void
}

export type Step = {
  name: string
  /** The pause between two rounds. */
  everyMs: number
  /** The largest part of the time for its batches; the step rests for the other part. */
  largestPart: number
  /** Begins a round. Returns the function that runs the next batch, and resolves to false when nothing is left. */
  begin(tools: Tools): () => Promise<boolean>
}
