import { appendFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'

// Loaded into a server with --import: writes down how late its event loop was, where that is worth a line.

const EVERY_MS = 10
const WORTH_MS = 15
const file = process.env.BENCH_LOOP_LAG_FILE

if (isMainThread && file && process.argv.includes('start')) {
  let last = performance.now()
  setInterval(() => {
    const now = performance.now()
    const lateMs = now - last - EVERY_MS
    last = now
    if (lateMs > WORTH_MS) appendFileSync(file, `${Date.now()} ${lateMs.toFixed(0)}\n`)
  }, EVERY_MS).unref()
}
