/** Receives the costs of answering, and throws if they exceed the caller's budget. */
export type Meter = {
  /** Rows kept in memory until the answer is complete. */
  load(rows: readonly Record<string, unknown>[]): void
  /** A pattern with this many instructions was compiled. */
  compile(instructions: number): void
  /**
   * Resolves when statements and matching may begin, at once if no pattern may take long for a row. A statement with
   * such patterns takes long itself, and holds the process of SQLite.
   */
  turn?(): Promise<void> | undefined
  /** Matching or sorting has taken this many more milliseconds. */
  match(ms: number): void
  /** Matching a row takes long. Throws also where others have their turn: then the row is matched again. */
  look(): void
  /** Resolves when others have had their turn. */
  pause?(): Promise<void>
  /** What a slow pattern has found in the texts of the present row; undefined where rows are matched at one go. */
  remember?(): Map<string, boolean>
}

/** A meter without limits, for callers whose queries are bounded. */
export const unmetered: Meter = { load() {}, compile() {}, match() {}, look() {} }
