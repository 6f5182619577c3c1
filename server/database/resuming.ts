import { AsyncLocalStorage } from 'node:async_hooks'

const resuming = new AsyncLocalStorage<true>()

/** Runs steps that may have been made before: statements whose work is there already are passed over. */
export const passingOver = <T>(work: () => Promise<T>): Promise<T> => resuming.run(true, work)

/** Whether a statement that has failed is one of a migration whose work is there already. */
export const isPassedOver = (error: unknown): boolean => {
  if (!resuming.getStore()) return false
  const { errno = 0, message = '' } = error as { errno?: number; message?: string }
  return MADE_ALREADY.includes(errno) || (errno === 1005 && /errno: 121\b/.test(message))
}

/**
 * MySQL's and MariaDB's: a table, column, key, primary key or foreign key exists; a table, column or key that is to be
 * dropped does not. Of a foreign key that exists, MariaDB says that its table can't be made (1005), and why.
 */
const MADE_ALREADY = [1050, 1060, 1061, 1068, 1826, 1051, 1091]
