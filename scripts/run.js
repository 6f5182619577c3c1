// Plain JavaScript for any Node from 14 on.
import { spawn } from 'node:child_process'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const isWindows = process.platform === 'win32'
const localBin = fileURLToPath(new URL('../node_modules/.bin', import.meta.url))

/**
 * The environment with the programs of node_modules first on the path, so that `node` is the pinned Node.
 *
 * @returns {NodeJS.ProcessEnv}
 */
export const withLocalPrograms = (env = process.env) => ({
  ...env,
  PATH: [localBin, env.PATH].filter(Boolean).join(path.delimiter),
})

/**
 * Runs a program in place of this process, with the same terminal and the same signals. Resolves to its exit code, or
 * to 128 plus the number of the signal that ended it, as shells do.
 *
 * @param {string} program
 * @param {string[]} args
 * @returns {Promise<number>}
 */
export const runInPlace = (program, args, env = process.env) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, { env, stdio: 'inherit' })
    const forward = (/** @type {NodeJS.Signals} */ signal) => {
      // A terminal sends Ctrl-C to the child as well; passing it on would send it twice.
      if (!(signal === 'SIGINT' && process.stdin.isTTY)) child.kill(signal)
    }
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, forward)
    child.on('error', reject)
    child.on('exit', (code, signal) => resolve(signal === null ? Number(code) : 128 + os.constants.signals[signal]))
  })

const PARENT_POLL_MS = 500

/**
 * npm and npx put a shell between themselves and a program, and a signal that ends them ends the shell without reaching
 * the program. If npm started this process, the end of that shell counts as SIGTERM.
 */
export const endWithNpm = () => {
  if (!process.env.npm_command || isWindows) return
  const parent = process.ppid
  const timer = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(timer)
    process.kill(process.pid, 'SIGTERM')
  }, PARENT_POLL_MS)
  timer.unref()
}
