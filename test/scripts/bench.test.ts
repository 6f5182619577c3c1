import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { benchmarks } from '../bench/benchmarks.ts'
import { NOT_ON_SQLITE } from '../support/databases.ts'
import { unlessFullSize } from '../support/size.ts'
import { namedServers } from '../support/templates.ts'

/** Most of them wait: for what warms up, and for a rate. */
const AT_ONCE = 3
const WITHIN_MS = 240_000

const main = fileURLToPath(new URL('../bench/main.ts', import.meta.url))
const LIBRARIES = fileURLToPath(new URL('../../bin/libraries.js', import.meta.url))
const [server] = namedServers

/** Runs a benchmark at its smallest size as `npm run bench -- NAME` does, in a folder that takes what it writes. */
const runSmallest = async (name: string) => {
  const { smallest, isOnServer } = benchmarks[name]!
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-bench-test-'))
  const child = spawn(
    process.execPath,
    ['--disable-warning=ExperimentalWarning', main, name, ...smallest.split(' ').filter(Boolean)],
    {
      cwd: folder,
      env: {
        ...process.env,
        BENCH_SMALLEST: '1',
        // Of what it starts, too, as a server does.
        NODE_OPTIONS: `--require ${JSON.stringify(LIBRARIES)}`,
        ...(isOnServer ? { TIDINGS_TEST_DATABASE_URLS: server } : { TIDINGS_TEST_ENGINES: 'sqlite' }),
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  )
  // It ends with all that it has started.
  const timer = setTimeout(() => child.kill('SIGTERM'), WITHIN_MS)
  const ended = new Promise<number | string>(resolve => child.once('close', (code, signal) => resolve(code ?? signal!)))
  const [said, complained, code] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  clearTimeout(timer)
  await rm(folder, { recursive: true })
  return { said, complained, code }
}

describe('each benchmark runs at its smallest size', { concurrency: AT_ONCE, skip: unlessFullSize }, () => {
  for (const [name, { about, isOnServer }] of Object.entries(benchmarks)) {
    it(`${name}: ${about}`, { skip: isOnServer && !server ? NOT_ON_SQLITE : false }, async t => {
      const begunAt = performance.now()
      const { said, complained, code } = await runSmallest(name)
      t.diagnostic(`${((performance.now() - begunAt) / 1000).toFixed(1)} s`)
      assert.equal(code, 0, `${said}\n${complained}`)
      assert.match(said, /\d/, `It has printed no figure.\n${complained}`)
    })
  }
})
