import assert from 'node:assert/strict'
import { it } from 'node:test'
import { Costs } from '../../server/readers/costs.ts'
import { testClock } from '../support/clock.ts'

const seen = (...queriesMs: number[]) => {
  const clock = testClock()
  const costs = new Costs(clock.now)
  for (const ms of queriesMs) costs.note('token', ms)
  return { costs, clock }
}
const times = (count: number, ms: number) => Array.from({ length: count }, () => ms)

it('a token that was never seen is neither known to be light nor heavy', () => {
  const { costs } = seen()
  assert.deepEqual([costs.isKnown('token'), costs.isHeavy('token')], [false, false])
})

it('a token whose queries are short is known to be light, and others first learn it', () => {
  const { costs } = seen(8)
  assert.deepEqual([costs.isKnown('token'), costs.isHeavy('token'), costs.isKnown('other')], [true, false, false])
  assert.ok(costs.expectedMs('token') < costs.expectedMs('other'))
})

it('a long query among many short ones counts, since others mostly meet that one', () => {
  assert.ok(seen(...times(9, 8), 400).costs.isHeavy('token'))
  assert.ok(!seen(...times(200, 8), 200).costs.isHeavy('token'))
})

it('a query that runs counts with what is known of its token', () => {
  const { costs } = seen(...times(50, 8))
  assert.ok(!costs.isHeavy('token', 150))
  assert.ok(costs.isHeavy('token', 500))
  assert.ok(costs.isHeavy('other', 150))
})

it('a token that was heavy is not so for long, and is known to be light only later', () => {
  const { costs, clock } = seen(5_000)
  assert.deepEqual([costs.isHeavy('token'), costs.isKnown('token')], [true, false])
  clock.advance(30_000)
  assert.deepEqual([costs.isHeavy('token'), costs.isKnown('token')], [false, false])
  clock.advance(270_000)
  assert.deepEqual([costs.isHeavy('token'), costs.isKnown('token')], [false, true])
})

it('a token that asks nothing for long is forgotten', () => {
  const { costs, clock } = seen(8)
  clock.advance(700_000)
  assert.ok(!costs.isKnown('token'))
})

const ENDED = { tookMs: 0, shareMs: 0, isHeavy: false, isNew: false, isMixed: false }

it('a first query that has become heavy counts with its share, however little its reader has seen of it', () => {
  const { costs } = seen()
  costs.noteEnd('token', { ...ENDED, tookMs: 50, shareMs: 800, isHeavy: true, isMixed: true })
  assert.deepEqual([costs.isKnown('token'), costs.isHeavy('token')], [false, true])
})

it('a light token does not become heavy by what runs beside its queries, or by a new reader', () => {
  const { costs } = seen(8)
  costs.noteEnd('token', { ...ENDED, tookMs: 8, shareMs: 800, isHeavy: true, isMixed: true })
  for (const added of [{ isMixed: true }, { isNew: true }])
    costs.noteEnd('token', { ...ENDED, tookMs: 1_700, shareMs: 400, ...added })
  assert.deepEqual([costs.isKnown('token'), costs.isHeavy('token')], [true, false])
})

it('a query that was ended before its answer counts with its share', () => {
  const { costs } = seen(8)
  costs.noteEnd('token', { ...ENDED, tookMs: undefined, shareMs: 800, isHeavy: true, isMixed: true })
  assert.ok(costs.isHeavy('token'))
})

it('tokens that were never seen do not become light by running beside each other', () => {
  const { costs } = seen()
  costs.noteEnd('token', { ...ENDED, tookMs: 1_700, shareMs: 210, isMixed: true })
  costs.noteEnd('quick', { ...ENDED, tookMs: 1_700, shareMs: 20, isMixed: true })
  assert.deepEqual([costs.isKnown('token'), costs.isKnown('quick')], [false, true])
})

it('what a light token takes beside light ones counts whole', () => {
  const { costs } = seen(8)
  costs.noteEnd('token', { ...ENDED, tookMs: 1_700, shareMs: 20 })
  assert.ok(costs.isHeavy('token'))
})

it('what a heavy token takes counts whole in a new reader, too', () => {
  const { costs, clock } = seen(1_000)
  clock.advance(20_000)
  costs.noteEnd('token', { ...ENDED, tookMs: 1_000, isNew: true })
  clock.advance(20_000)
  assert.ok(costs.isHeavy('token'))
})
