import assert from 'node:assert/strict'
import { it } from 'node:test'
import { Mode } from '../server/mode.ts'
import { Turns } from '../server/turns.ts'

const taken = (turns: Turns<string>, mayBegin?: (item: string) => boolean) => {
  const all: string[] = []
  for (let item = turns.take(mayBegin); item; item = turns.take(mayBegin)) all.push(item)
  return all
}

it('keys take turns, each in its own order', () => {
  const turns = new Turns<string>()
  for (const item of ['a1', 'a2', 'a3', 'b1', 'c1', 'c2']) turns.add(item[0]!, item)
  assert.equal(turns.size, 6)
  assert.deepEqual(taken(turns), ['a1', 'b1', 'c1', 'a2', 'c2', 'a3'])
  assert.equal(turns.size, 0)
})

it('a key that was served comes after those that wait, and what may not begin keeps its place', () => {
  const turns = new Turns<string>()
  for (const item of ['a1', 'a2', 'b1']) turns.add(item[0]!, item)
  assert.equal(
    turns.take(item => item !== 'a1'),
    'a2',
  )
  turns.add('a', 'a3')
  assert.deepEqual(taken(turns), ['b1', 'a1', 'a3'])
})

it('a key whose turn it may not be is passed over with all that waits of it', () => {
  const turns = new Turns<string>()
  for (const item of ['a1', 'a2', 'b1', 'b2']) turns.add(item[0]!, item)
  const asked: string[] = []
  const mayBegin = (key: string): boolean => {
    asked.push(key)
    return key === 'b'
  }
  assert.deepEqual([turns.takeOf(mayBegin), turns.takeOf(mayBegin), turns.takeOf(mayBegin)], ['b1', 'b2', undefined])
  assert.deepEqual(asked, ['a', 'b', 'a', 'b', 'a'])
})

it('keys are in the order of their first items, and equal ones take turns', () => {
  const turns = new Turns<string>()
  for (const item of ['a1', 'b1', 'b2', 'c1', 'a2']) turns.add(item[0]!, item)
  const next = () =>
    turns.takeFirst(
      () => true,
      item => [Number(item[0] === 'a')],
    )
  assert.deepEqual([next(), next(), next(), next(), next()], ['b1', 'c1', 'b2', 'a1', 'a2'])
})

it('what no longer waits has no turn', () => {
  const turns = new Turns<string>()
  turns.add('a', 'a1')
  assert.ok(turns.delete('a', 'a1'))
  assert.ok(!turns.delete('a', 'a1'))
  assert.equal(turns.take(), undefined)
})

it('a mode is followed only by those that may follow it', () => {
  const mode = new Mode<'idle' | 'busy'>('idle', { idle: ['busy'], busy: [] })
  mode.enter('busy')
  assert.equal(mode.now, 'busy')
  assert.throws(() => mode.enter('idle'), /idle cannot follow busy/)
})
