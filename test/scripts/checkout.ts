import { type SpawnOptions, spawn } from 'node:child_process'
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'

export const repository = fileURLToPath(new URL('../..', import.meta.url))

/** Makes this Node process claim to be 20.1.0, but not the processes that it starts. */
export const OLD_NODE = [
  '--import',
  'data:text/javascript,Object.defineProperty(process,"versions",{value:{...process.versions,node:"20.1.0"}})',
]

/** A folder with the repository's bin and scripts, and a command line that prints its arguments. */
export const checkout = async ({ isInstalled = true } = {}) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-checkout-'))
  for (const part of ['bin', 'scripts', 'package.json', 'package-lock.json']) {
    await cp(path.join(repository, part), path.join(folder, part), { recursive: true, verbatimSymlinks: true })
  }
  if (isInstalled) await symlink(path.join(repository, 'node_modules'), path.join(folder, 'node_modules'))
  await mkdir(path.join(folder, 'cli'))
  await writeFile(path.join(folder, 'cli', 'main.ts'), STUB)
  return { folder, remove: () => rm(folder, { recursive: true, force: true }) }
}

const STUB = `
export const run = async (argv: string[]): Promise<number> => {
  console.log(JSON.stringify({ argv, node: process.versions.node }))
  if (argv[0] === 'wait') await new Promise(resolve => setTimeout(resolve, 60_000))
  if (argv[0] === 'warn') {
    process.emitWarning('SQLite is an experimental feature and might change at any time', 'ExperimentalWarning')
    process.emitWarning('Type Stripping is an experimental feature', 'ExperimentalWarning')
    process.emitWarning('Something else is an experimental feature', 'ExperimentalWarning')
    process.emitWarning('This is deprecated', 'DeprecationWarning')
  }
  return Number(argv[1]) || 0
}
`

/** Runs a program to its end. */
export const run = async (program: string, args: string[], options: SpawnOptions = {}) => {
  const child = spawn(program, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve, reject) => {
    child.on('error', reject).on('close', (code, signal) => resolve({ code, signal }))
  })
  const [stdout, stderr, { code, signal }] = await Promise.all([text(child.stdout!), text(child.stderr!), ended])
  return { stdout, stderr, code, signal }
}
