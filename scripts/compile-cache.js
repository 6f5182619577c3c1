import { mkdirSync, symlinkSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'

/**
 * Lets programs whose temporary folder this is have what others have compiled: Node looks for it there. Otherwise each
 * of them would strip types from all of the program, and compile it, whenever it starts.
 *
 * @param {string} folder
 * @returns {string} the folder in which compiled code is kept
 */
export const shareCompiled = folder => {
  const shared = path.join(os.tmpdir(), NAME)
  mkdirSync(shared, { recursive: true })
  symlinkSync(shared, path.join(folder, NAME))
  return shared
}

const NAME = 'node-compile-cache'
