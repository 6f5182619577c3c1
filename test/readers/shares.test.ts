import assert from 'node:assert/strict'
import { it } from 'node:test'
import { MOST_LONG_A_TOKEN, MOST_READERS, mayBegin, mayStay, type Share } from '../../server/readers/shares.ts'

const light = (tokenId = 'light'): Share => ({
  tokenId,
  isHeavy: false,
  isMatching: false,
  isSuspect: false,
  isCrowded: false,
})
const heavy = (tokenId = 'heavy'): Share => ({ ...light(tokenId), isHeavy: true })
const suspect = (tokenId = 'suspect'): Share => ({ ...heavy(tokenId), isSuspect: true })
const matching = (tokenId = 'matching'): Share => ({ ...heavy(tokenId), isMatching: true })
const PLACES = 4
/** In which of the readers a query may begin. */
const places = (job: Share, ...readers: Share[][]) =>
  readers.flatMap((_, index) => (mayBegin(job, index, readers, PLACES) ? [index] : []))

it('a light query begins where no heavy one runs', () => {
  assert.deepEqual(places(light(), [heavy()], []), [1])
  assert.deepEqual(places(light(), [], [light('other')]), [0, 1])
})

it('a light query waits for no reader that is yet to start', () => {
  assert.deepEqual(places(light(), [heavy()]), [0])
})

it('a heavy query leaves one reader to light ones', () => {
  assert.deepEqual(places(heavy(), [], []), [0, 1])
  assert.deepEqual(places(heavy(), [heavy('other')], [light()]), [0])
  assert.deepEqual(places(heavy(), []), [])
})

it('a reader has so many places', () => {
  const full = Array.from({ length: PLACES }, (_, n) => light(`${n}`))
  assert.deepEqual(places(light(), full, full.slice(1)), [1])
})

it('a token has half of the places, and a crowded one as many as it may have long ones', () => {
  const own = Array.from({ length: (PLACES * MOST_READERS) / 2 }, () => light())
  assert.deepEqual(places(light(), own.slice(0, PLACES / 2), own.slice(PLACES / 2)), [])
  assert.deepEqual(places(light(), own.slice(0, PLACES / 2), own.slice(PLACES / 2 + 1)), [0, 1])
  const crowded = { ...light(), isCrowded: true }
  assert.deepEqual(
    places(
      crowded,
      Array.from({ length: MOST_LONG_A_TOKEN }, () => light()),
      [],
    ),
    [],
  )
})

it('a suspect runs alone, and one at a time', () => {
  assert.deepEqual(places(suspect(), [light()], []), [1])
  assert.deepEqual(places(suspect(), [suspect('other')], [], []), [])
  assert.deepEqual(places(light(), [suspect()], []), [1])
  assert.deepEqual(places(heavy(), [suspect()], [], []), [1, 2])
})

it('of queries with patterns that take long, a reader runs one at a time', () => {
  assert.deepEqual(places(matching(), [matching('other')], []), [])
  assert.deepEqual(places(matching(), [matching('other')], [], []), [1, 2])
  assert.deepEqual(places(matching(), [heavy()], []), [0])
  assert.deepEqual(places(heavy(), [matching()], []), [0])
  assert.ok(mayStay(0, [[matching(), heavy()], []], PLACES))
  assert.ok(!mayStay(0, [[matching(), matching('other')], []], PLACES))
})

it('a query that turns out to be heavy stays where another reader is light', () => {
  assert.ok(mayStay(0, [[heavy()], [light()]], PLACES))
  assert.ok(!mayStay(0, [[heavy()], ...Array.from({ length: MOST_READERS - 1 }, () => [heavy()])], PLACES))
})

it('of a single reader, heavy queries keep half of the places at most', () => {
  assert.ok(mayStay(0, [[heavy(), heavy()]], PLACES))
  assert.ok(!mayStay(0, [[heavy(), heavy(), heavy()]], PLACES))
  assert.ok(mayStay(0, [[heavy()]], 1))
})
