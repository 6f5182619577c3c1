// A reporter of node:test, which runs in the process of a test file and writes each result as a line of JSON.
import { inspect } from 'node:util'

/**
 * What a line holds.
 *
 * @typedef {{ is: 'begun' | 'passed', path: string[], ms?: number }
 *   | { is: 'failed', path: string[], file: string, line: number, error: string }
 *   | { is: 'skipped', path: string[], reason: string }
 *   | { is: 'said', text: string }} TestEvent
 */

/** @param {AsyncIterable<import('node:test/reporters').TestEvent>} source */
export default async function* events(source) {
  /** The names of the tests around the present one. */
  const path = /** @type {string[]} */ ([])
  for await (const { type, data } of source) {
    if (type === 'test:start') path.splice(data.nesting, path.length, data.name)
    const event = eventOf(type, data, path)
    if (event) yield `${JSON.stringify(event)}\n`
  }
}

/**
 * @param {string} type
 * @param {any} data
 * @param {string[]} around
 * @returns {TestEvent | undefined}
 */
const eventOf = (type, data, around) => {
  if (type === 'test:dequeue') return { is: 'begun', path: [data.name] }
  if (type === 'test:diagnostic' && data.level && data.level !== 'info') return { is: 'said', text: data.message }
  if (type !== 'test:pass' && type !== 'test:fail') return undefined
  const path = [...around.slice(0, data.nesting), data.name]
  if (data.skip !== undefined || data.todo !== undefined) {
    const reason = data.skip ?? data.todo
    return { is: 'skipped', path, reason: typeof reason === 'string' ? reason : '' }
  }
  const isSuite = data.details.type === 'suite'
  if (type === 'test:pass') return isSuite ? undefined : { is: 'passed', path, ms: data.details.duration_ms }
  const { error } = data.details
  // Its subtests say themselves what has failed.
  if (error.failureType === 'subtestsFailed') return undefined
  return { is: 'failed', path, file: data.file, line: data.line, error: inspect(error.cause ?? error) }
}
