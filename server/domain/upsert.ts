import { isDuplicate } from '../database/connect.ts'

/**
 * Runs an INSERT of a row that was not there when it was looked for; false if another transaction has written it in
 * between, and has been committed.
 */
export const insertedFirst = async (insert: PromiseLike<unknown>): Promise<boolean> => {
  try {
    await insert
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}
