import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { eventually } from './eventually.ts'

describe('waiting for something to be so', () => {
  it('answers with what was seen, once it is so', async () => {
    let n = 0
    const seen = await eventually(
      'a number above 2',
      () => ++n,
      number => number > 2,
    )
    assert.equal(seen, 3)
  })

  it('looks again where a look has thrown', async () => {
    let n = 0
    const look = () => {
      if (++n < 3) throw new Error('not yet')
      return n
    }
    assert.equal(await eventually('three looks', look, Boolean), 3)
  })

  it('gives up at its deadline, and says what it waited for and what it saw last', async () => {
    const waiting = eventually(
      'two rows',
      () => [{ id: 'a' }],
      rows => rows.length === 2,
      { timeoutMs: 30 },
    )
    await assert.rejects(waiting, { message: "Waited 30 ms for two rows. Seen last: [ { id: 'a' } ]" })
  })

  it('says what its last look has thrown', async () => {
    const look = () => fetch('http://127.0.0.1:9/')
    await assert.rejects(
      eventually('an answer', look, () => true, { timeoutMs: 30 }),
      /^Error: Waited 30 ms for an answer\. Seen last: \[?TypeError: fetch failed/,
    )
  })
})
