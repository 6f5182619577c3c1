import { setTimeout as wait } from 'node:timers/promises'

const PATIENCE_MS = 20_000

/** Repeats an attempt until it no longer rejects, such as while a new process does not listen yet. */
export const whenItListens = async <T>(attempt: () => Promise<T>): Promise<T> => {
  for (const endMs = Date.now() + PATIENCE_MS; ; await wait(20)) {
    try {
      return await attempt()
    } catch (error) {
      if (Date.now() > endMs) throw error
    }
  }
}
