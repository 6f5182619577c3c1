/** Is told what answering costs, and throws when that is more than the caller may spend. */
export type Meter = {
  /** Rows that are in memory until the answer is there. */
  load(rows: readonly Record<string, unknown>[]): void
  /** A pattern of so many instructions was compiled. */
  compile(instructions: number): void
  /** Matching or sorting has taken so many more milliseconds. */
  match(ms: number): void
  /** Matching is in the middle of a row that takes long. */
  look(): void
}

/** For callers that are bounded by what they ask. */
export const unmetered: Meter = { load() {}, compile() {}, match() {}, look() {} }
