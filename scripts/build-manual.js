// Builds man/, the manual pages of the package, from the texts of the help.
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { manualPages } from '../cli/help/manual.ts'
import { wholeProgram } from '../cli/main.ts'
import { version } from '../shared/version.ts'

const root = fileURLToPath(new URL('..', import.meta.url))

/** Builds into a folder, by default man. */
export const buildManual = async (folder = path.join(root, 'man')) => {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  for (const { file, text } of manualPages(await wholeProgram(), version)) writeFileSync(path.join(folder, file), text)
}

if (import.meta.main) await buildManual()
