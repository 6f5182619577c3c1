import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scenes } from '../../cli/rehearse/judge.ts'
import type { RehearsalAnswer } from '../../shared/rehearsal.ts'

const answered = (statusCode: number): RehearsalAnswer => ({
  ...{ delivery: 0, eventType: 'ping', vector: null, isAdvisable: false },
  ...{ statusCode, failure: null, detail: null, challenge: null, durationMs: 1 },
})

for (const [statusCode, status] of [
  [401, 'ok'],
  [400, 'note'],
  [428, 'note'],
  [429, 'problem'],
  [430, 'note'],
  [499, 'note'],
  [500, 'problem'],
  [200, 'problem'],
] as const) {
  test(`a token that is not valid and is answered ${statusCode} is judged: ${status}`, () => {
    assert.equal(scenes.expired.judge([answered(statusCode)]).status, status)
  })
}
