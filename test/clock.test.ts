import assert from 'node:assert/strict'
import { mock, test } from 'node:test'
import { watchMachineClock } from '../server/clock.ts'
import { createMetrics } from '../server/metrics/metrics.ts'

const clockBehindMs = (ms: number) => ({ now: () => Date.now() - ms })
const LOOKS_OF_TWO_HOURS = 720

test("a machine's clock that is off is told in the log at once, and again once an hour", () => {
  mock.timers.enable({ apis: ['setInterval', 'Date'], now: 1_800_000_000_000 })
  try {
    const told: string[] = []
    const log = { warn: (_facts: object, message: string) => told.push(message) }
    for (const ms of [45_000, -45_000, 900]) {
      const watch = watchMachineClock(clockBehindMs(ms), log as never)
      for (let look = 1; look < LOOKS_OF_TWO_HOURS; look++) mock.timers.tick(10_000)
      watch.stop()
    }
    const about = (apart: string) =>
      `this machine's clock is 45 s ${apart} the database's, which Tidings goes by; set it`
    assert.deepEqual(told, [about('ahead of'), about('ahead of'), about('behind'), about('behind')])
  } finally {
    mock.timers.reset()
  }
})

test("metrics tell how far a machine's clock is off", async () => {
  const metrics = createMetrics()
  metrics.compareWith(clockBehindMs(45_000))
  assert.match(await metrics.registry.metrics(), /^tidings_clock_offset_seconds 4[45](\.\d+)?$/m)
})
