import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { cases } from '../chaos/cases/index.ts'
import { enginesFor } from '../support/databases.ts'
import { oneEngineByDay } from '../support/engines-by-day.ts'
import { repository } from './checkout.ts'

const read = (file: string): string => readFileSync(path.join(repository, file), 'utf8')

/** The rows of the tables of promises, by the names of their columns. */
const promises = read('docs/promises.md')
  .split('\n\n')
  .filter(part => part.startsWith('| Promise |'))
  .flatMap(table => {
    const [head, , ...rows] = table.trim().split('\n').map(cellsOf)
    return rows.map(cells => Object.fromEntries(head!.map((name, n) => [name, cells[n] ?? ''])))
  })

function cellsOf(line: string): string[] {
  return line
    .split('|')
    .slice(1, -1)
    .map(cell => cell.trim())
}

test('each promise has a test of `npm test`, which is there', () => {
  assert.ok(promises.length > 30)
  for (const { Promise: promise, Test: named } of promises) {
    assert.ok(named, `no test is named for: ${promise}`)
    for (const one of named.split('; ')) {
      const [, file = '', words = ''] = /^`(test\/\S+\.test\.ts)`: (.+)$/.exec(one) ?? []
      assert.ok(file && read(file).includes(words), `there is no such test: ${one}`)
    }
  }
})

test('each case of a promise is there, and each case is of a promise', () => {
  const named = new Set(promises.flatMap(({ Case = '' }) => [...Case.matchAll(/`([\w-]+)`/g)].map(([, name]) => name)))
  assert.deepEqual([...named].sort(), cases.map(({ name }) => name).sort())
})

test('each promise is tried on a server every day, if there is one, and each file of one engine is there', () => {
  for (const { Promise: promise, Test: named = '' } of promises) {
    const files = named.split('; ').map(one => /`(test\/[^`]+)`/.exec(one)?.[1] ?? '')
    assert.ok(
      files.some(file => oneEngineByDay[file] !== 'SQLite'),
      `no test runs on a server for: ${promise}`,
    )
  }
  for (const file of Object.keys(oneEngineByDay)) {
    assert.ok(existsSync(path.join(repository, file)), `there is no ${file}`)
    assert.match(read(file), /describeEachEngine|enginesHere/, `${file} chooses its engines itself`)
  }
})

test('a file that needs one engine by day has it, has what there is where it is missing, and all at full size', () => {
  const both = ['sqlite', 'mariadb 10.11.1']
  assert.deepEqual(enginesFor('test/delivery/chaos.test.ts', false, both), ['mariadb 10.11.1'])
  assert.deepEqual(enginesFor('test/delivery/chaos.test.ts', false, ['sqlite']), ['sqlite'])
  assert.deepEqual(enginesFor('test/graphql/audit.test.ts', false, both), ['sqlite'])
  assert.deepEqual(enginesFor('test/delivery/queue.test.ts', false, both), both)
  assert.deepEqual(enginesFor('test/delivery/chaos.test.ts', true, both), both)
})
