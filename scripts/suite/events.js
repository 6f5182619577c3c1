import { inspect } from 'node:util'

/**
 * @typedef {{ is: 'begun' | 'passed', path: string[] }
 *   | { is: 'failed', path: string[], file: string, line: number, error: string }
 *   | { is: 'skipped', path: string[], reason: string }
 *   | { is: 'said', text: string }} TestEvent
 */

/**
 * What the runner needs of the events of node:test.
 *
 * @param {AsyncIterable<import('node:test/reporters').TestEvent>} source
 * @returns {AsyncGenerator<TestEvent>}
 */
export async function* events(source) {
  /** The names of the tests around the present one. */
  const path = /** @type {string[]} */ ([])
  for await (const { type, data } of source) {
    if (type === 'test:start') path.splice(data.nesting, path.length, data.name)
    const event = eventOf(type, data, path)
    if (event) yield event
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
  if (type === 'test:pass') return isSuite ? undefined : { is: 'passed', path }
  const { error } = data.details
  // Its subtests say themselves what has failed.
  if (error.failureType === 'subtestsFailed') return undefined
  return { is: 'failed', path, file: data.file, line: data.line, error: inspect(error.cause ?? error) }
}
