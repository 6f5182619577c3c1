import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { dateOf, dueDateOf, isQuarter, quarterBefore } from '../../server/domain/quarters.ts'

const at = (iso: string): number => Date.parse(iso)

describe('quarters', () => {
  it('are written as year and number', () => {
    for (const text of ['2026-1', '2026-4', '1999-2']) assert.ok(isQuarter(text), text)
    for (const text of ['2026-0', '2026-5', '2026-01', '26-1', '2026Q1', '2026-1 ', '2026-1\n', '']) {
      assert.ok(!isQuarter(text), JSON.stringify(text))
    }
  })

  it('end with the last millisecond of their third month, in UTC', () => {
    assert.equal(quarterBefore(at('2026-03-31T23:59:59.999Z')), '2025-4')
    assert.equal(quarterBefore(at('2026-04-01T00:00:00.000Z')), '2026-1')
    assert.equal(quarterBefore(at('2026-06-30T23:59:59.999Z')), '2026-1')
    assert.equal(quarterBefore(at('2026-07-01T00:00:00.000Z')), '2026-2')
    assert.equal(quarterBefore(at('2026-10-01T00:00:00.000Z')), '2026-3')
    assert.equal(quarterBefore(at('2027-01-01T00:00:00.000Z')), '2026-4')
  })

  it('have their report due so many days after their last day, over the turn of the year and in leap years', () => {
    assert.equal(dueDateOf('2026-1', 30), '2026-04-30')
    assert.equal(dueDateOf('2026-2', 30), '2026-07-30')
    assert.equal(dueDateOf('2026-3', 30), '2026-10-30')
    assert.equal(dueDateOf('2026-4', 30), '2027-01-30')
    assert.equal(dueDateOf('2026-4', 0), '2026-12-31')
    assert.equal(dueDateOf('2027-4', 60), '2028-02-29')
    assert.equal(dueDateOf('2026-4', 365), '2027-12-31')
  })

  it('go by days in UTC', () => {
    assert.equal(dateOf(at('2026-11-21T23:59:59.999Z')), '2026-11-21')
    assert.equal(dateOf(at('2026-11-22T00:30:00+01:00')), '2026-11-21')
  })
})
