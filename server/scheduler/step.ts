import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import type { Log } from '../log.ts'

export type Tools = {
  database: Database
  clock: Clock
  log: Log
  reportDueDays: number
  retentionDays: number
  /** 90 unless given. */
  auditDays?: number
  /** Told when events have been written. */
  onEvents: () => void
  /** Told of each step whose round was done, or has failed. */
  onStep?: (name: string, isDone: boolean) => void
}

export type Step = {
  name: string
  /** How long after the end of a round the next begins. */
  everyMs: number
  /** The part of the time that its batches take at most; after each the step rests for the other. */
  largestPart: number
  /** Begins a round. What comes back does the next batch: false when nothing is left. */
  begin(tools: Tools): () => Promise<boolean>
}
