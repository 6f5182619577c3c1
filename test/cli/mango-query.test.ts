import assert from 'node:assert/strict'
import { test } from 'node:test'
import { allOf } from '../../cli/resources/mango-query.ts'

test('an empty selector beside other conditions asks for nothing more', () => {
  assert.deepEqual(allOf([{ status: 'delivered' }, {}]), { status: 'delivered' })
  assert.deepEqual(allOf([{}, { a: 1 }, {}, { b: 2 }]), { $and: [{ a: 1 }, { b: 2 }] })
})

test('no condition, or none but empty ones, is no selector', () => {
  assert.equal(allOf([]), undefined)
  assert.equal(allOf([{}]), undefined)
})
