import { isDuplicate } from '../database/connect.ts'

/**
 * Runs an INSERT of a row that did not exist when it was looked up. Returns false if another transaction has inserted
 * and committed it in between.
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
