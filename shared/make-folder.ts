import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { codeOf } from './errors.ts'

/**
 * Makes a folder with its parents, for this user alone, unless it exists. Node's own recursion never ends in a folder
 * that refuses children with ENOENT, such as /proc.
 */
export const makeFolder = (path: string): void => {
  if (existsSync(path)) return
  makeFolder(dirname(path))
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    // Another process was first.
    if (codeOf(error) !== 'EEXIST') throw error
  }
}
