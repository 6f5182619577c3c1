import assert from 'node:assert/strict'
import { test } from 'node:test'
import { newId, passingId } from '../server/ids.ts'
import { timeOfId } from '../shared/time.ts'

const NOW = Date.parse('2026-11-22T10:00:00Z')

test('ids of one moment sort in the order in which they were made', () => {
  const ids = Array.from({ length: 10_000 }, () => newId(NOW))
  assert.deepEqual(ids, ids.toSorted())
  assert.equal(new Set(ids).size, ids.length)
})

test('an id tells the time that it was given, in UUID version 7', () => {
  const id = newId(NOW + 5_000)
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  assert.equal(timeOfId(id), NOW + 5_000)
})

test('a clock that is set right does not disturb the order', () => {
  const before = newId(NOW + 10_000)
  const after = newId(NOW + 9_990)
  assert.ok(before < after)
})

test('ids of another clock, further back, are of that clock', () => {
  newId(NOW + 20_000)
  assert.equal(timeOfId(newId(NOW)), NOW)
})

test('no two ids share their random bits', () => {
  const ids = Array.from({ length: 5_000 }, (_, n) => [newId(NOW + 30_000 + n), passingId()]).flat()
  assert.equal(new Set(ids.map(id => id.slice(-11))).size, ids.length)
})
