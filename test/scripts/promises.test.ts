import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { cases } from '../chaos/cases/index.ts'
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
