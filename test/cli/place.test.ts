import assert from 'node:assert/strict'
import { test } from 'node:test'
import { placeOf, selectPlace, withoutPlace } from '../../cli/resources/place.ts'

const sort = [
  { 'event.payload.projectReport.quarter': 'asc' as const },
  { 'attempts.1.failure': 'desc' as const },
  { 'webhook.url': 'asc' as const },
  { status: 'asc' as const },
]

test('a walk asks for what its rows are sorted by, and goes on from what they had there', () => {
  assert.equal(
    selectPlace(sort),
    'sortedBy0: event { payload } sortedBy1: attempts { failure } sortedBy2: webhook { url } sortedBy3: status',
  )
  const row = {
    id: 'a',
    sortedBy0: { payload: { projectReport: { quarter: '2026-3' } } },
    sortedBy1: [{ failure: null }, { failure: 'timeout' }],
    sortedBy2: null,
    sortedBy3: 'pending',
  }
  assert.deepEqual(placeOf(row, sort), { after: 'a', afterValues: ['2026-3', 'timeout', null, 'pending'] })
  assert.deepEqual(withoutPlace(row), { id: 'a' })
})

test('a walk by id needs the id only', () => {
  for (const byId of [[], [{ id: 'desc' as const }]]) {
    assert.equal(selectPlace(byId), '')
    assert.deepEqual(placeOf({ id: 'a' }, byId), { after: 'a' })
  }
})
