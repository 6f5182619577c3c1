import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { parseRetrySchedule, RETRY_SCHEDULE_MS } from '../../shared/retry-schedule.ts'

describe('the retry schedule', () => {
  it('is that of the specification', () => {
    assert.deepEqual(
      RETRY_SCHEDULE_MS,
      [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560].map(seconds => seconds * 1000),
    )
  })

  it('can be given as seconds with fractions', () => {
    assert.deepEqual(parseRetrySchedule('0.05, 1,2.5 ,0'), [50, 1000, 2500, 0])
  })

  for (const text of ['', '5,', '5;10', '-1', '1e3', 'soon', '5,Infinity', '604801', '5s']) {
    it(`is not read from ${JSON.stringify(text)}, and says what would be right`, () => {
      assert.throws(() => parseRetrySchedule(text), /expected the waits between attempts in seconds/)
    })
  }

  it('names every part that is wrong', () => {
    assert.throws(() => parseRetrySchedule('5,x,10,-2'), /^RangeError: "x", "-2":/)
  })
})
