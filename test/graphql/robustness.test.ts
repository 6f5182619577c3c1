import assert from 'node:assert/strict'
import { it } from 'node:test'
import { fuzz } from '../bench/fuzz.ts'
import { describeEachEngine, engines } from '../support/databases.ts'
import { startTestServer } from '../support/server.ts'
import { atFullSize } from '../support/size.ts'

// The same requests every time, spread over the engines.
// `node test/bench/fuzz.ts` sends as many others as one likes.
const COUNT = Math.ceil(atFullSize(2_000, 400) / engines.length)

describeEachEngine('random and mutated requests', engine => {
  it('are answered, never by a 500, and never with what the token does not see', async () => {
    const server = await startTestServer(engine, { env: { TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' } })
    try {
      const { answers, codes, faults } = await fuzz(server, { seed: 20261121, count: COUNT })
      assert.deepEqual(faults, [])
      assert.equal(answers, COUNT)
      assert.ok(
        codes['200']! > COUNT / 10,
        `too few of them are answered for it to say anything: ${JSON.stringify(codes)}`,
      )
    } finally {
      await server.stop()
    }
  })
})
