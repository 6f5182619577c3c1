#!/usr/bin/env node
// CommonJS, because it starts faster and runs on any Node from 14 on: an old Node gets as far as finding a newer one.
const { readFileSync, writeSync } = require('node:fs')
const path = require('node:path')

const NODE_FLOOR = 24
const args = process.argv.slice(2)

// A server gives memory back by itself (server/heap.ts). V8 must not: with the memory it throws away the code that it
// has compiled for objects of which none is left, such as attempts, and it would do so in every pause of 8 s. V8 keeps
// the first value that it reads, so this comes before anything is loaded; 2 ** 31 - 1 ms are for ever.
if (args[0] === 'server') require('node:v8').setFlagsFromString('--gc-memory-reducer-start-delay-ms=2147483647')

if (args.length === 1 && (args[0] === '--version' || args[0] === '-V')) {
  // Answered before anything else is loaded, even process.stdout, so that it takes no longer than Node itself.
  const { version } = JSON.parse(readFileSync(path.join(__dirname, '../package.json'), 'utf8'))
  try {
    writeSync(1, `${version}\n`)
  } catch (error) {
    // A reader that closed the pipe has what it wanted.
    if (!(error instanceof Error && 'code' in error && error.code === 'EPIPE')) throw error
  }
} else {
  start().then(
    code => {
      process.exitCode = code
    },
    error => {
      console.error(`tidings: ${error.message}`)
      process.exitCode = 1
    },
  )
}

async function start() {
  silenceKnownWarnings()
  const { isPackage, load, loadScript } = require('./program.js')
  const isNewEnough = Number(process.versions.node.split('.')[0]) >= NODE_FLOOR
  if (isPackage && !isNewEnough) {
    throw new Error(`Tidings needs Node ${NODE_FLOOR} or newer, and this is ${process.version} (${process.execPath}).`)
  }
  if (!isPackage && process.env.npm_command) (await import('../scripts/run.js')).endWithNpm()
  const script = isNewEnough && loadScript('cli/main', kindOfServer())
  if (script) return script.run(args)
  if (!isPackage) {
    const { ensureInstalled } = await import('../scripts/install.js')
    const node = await ensureInstalled({ development: false })
    if (!isNewEnough) return runOn(node)
  }
  require('node:module').enableCompileCache()
  const { run } = await load('cli/main')
  return run(args)
}

/** Which functions a `server` command runs; undefined for another command, which may show a screen. */
function kindOfServer() {
  if (args[0] !== 'server') return undefined
  return args[1] === 'start' && !args.includes('--help') ? 'start' : 'command'
}

/** @param {string} node */
async function runOn(node) {
  const { runInPlace, withLocalPrograms } = await import('../scripts/run.js')
  return runInPlace(node, [__filename, ...args], withLocalPrograms())
}

/** Silences Node's warnings about the two experimental features that Tidings uses knowingly. */
function silenceKnownWarnings() {
  /** @type {(warning: string | Error, ...rest: any[]) => void} */
  const emitWarning = process.emitWarning
  process.emitWarning = (/** @type {string | Error} */ warning, /** @type {any[]} */ ...rest) => {
    const isExperimental = rest[0] === 'ExperimentalWarning' || rest[0]?.type === 'ExperimentalWarning'
    if (isExperimental && /^(SQLite|Type Stripping)/i.test(String(warning))) return
    emitWarning.call(process, warning, ...rest)
  }
}
