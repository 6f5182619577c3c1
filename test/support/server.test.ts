import assert from 'node:assert/strict'
import { it } from 'node:test'
import { testClock } from './clock.ts'
import { startTestServer } from './server.ts'

const HOUR_MS = 3_600_000

// As in a suite that has been running for so long: the clock of a test stands where it was made, and real time goes on.
for (const [where, offMs] of Object.entries({ 'an hour behind': -HOUR_MS, 'an hour ahead': HOUR_MS })) {
  it(`a test’s requests are signed by the clock of its server, which stands ${where} of real time`, async () => {
    const server = await startTestServer('sqlite', { clock: testClock(Date.now() + offMs) })
    try {
      for (const as of [undefined, await server.token()]) {
        const { status, errors } = await server.graphql('{ viewer { name } }', {}, as)
        assert.deepEqual({ status, errors }, { status: 200, errors: undefined })
      }
    } finally {
      await server.stop()
    }
  })
}
