import { AsyncLocalStorage } from 'node:async_hooks'

const resuming = new AsyncLocalStorage<true>()

/** Runs the statements of a migration and skips those whose work already exists. */
export const passingOver = <T>(work: () => Promise<T>): Promise<T> => resuming.run(true, work)

/** Whether a migration's statement failed because its work already exists. */
export const isPassedOver = (error: unknown): boolean => {
  if (!resuming.getStore()) return false
  const { errno = 0, message = '' } = error as { errno?: number; message?: string }
  return MADE_ALREADY.includes(errno) || (errno === 1005 && /errno: 121\b/.test(message))
}

/**
 * MySQL's and MariaDB's: a table, column, key, primary key or foreign key exists; a table, column or key that is to be
 * dropped does not. For a foreign key that exists, MariaDB says that the table cannot be created (1005), and why.
 */
const MADE_ALREADY = [1050, 1060, 1061, 1068, 1826, 1051, 1091]
