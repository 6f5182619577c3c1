import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { parseRetryAfter } from '../../server/delivery/retry-after.ts'

const nowMs = Date.parse('2026-11-21T00:40:00.500Z')

describe('Retry-After', () => {
  const readable: [string, number][] = [
    ['30', 30_000],
    [' 30 ', 30_000],
    ['0', 0],
    ['-5', 0],
    ['+5', 5000],
    ['1.5', 1500],
    ['Sat, 21 Nov 2026 00:41:00 GMT', 59_500],
    ['Saturday, 21-Nov-26 00:41:00 GMT', 59_500],
    ['Sat Nov 21 00:41:00 2026', 59_500],
    ['2026-11-21T01:41:00+01:00', 59_500],
    ['Sat, 21 Nov 2026 00:40:00 GMT', 0],
    ['Sun, 06 Nov 1994 08:49:37 GMT', 0],
  ]
  for (const [header, waitMs] of readable) {
    it(`${JSON.stringify(header)} asks to wait ${waitMs} ms`, () =>
      assert.equal(parseRetryAfter(header, nowMs), waitMs))
  }

  it('of absurd length is still a number that can be compared', () => {
    const waitMs = parseRetryAfter('9'.repeat(400), nowMs)!
    assert.equal(Number.isSafeInteger(waitMs) && waitMs > 24 * 3600 * 1000, true)
  })

  for (const header of [
    '',
    ' ',
    'soon',
    '30s',
    '30, 60',
    '1e3',
    '0x10',
    'Sat, 31 Feb 2026 00:41:00 GMT',
    '٣٠',
    '--5',
  ]) {
    it(`${JSON.stringify(header)} can’t be read`, () => assert.equal(parseRetryAfter(header, nowMs), undefined))
  }
})
