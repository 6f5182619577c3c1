import assert from 'node:assert/strict'
import { it } from 'node:test'
import {
  isReplacing,
  MOST_HEAVY_A_PARTY,
  mayBegin,
  mayHaveMore,
  mayMove,
  mayStay,
  type Share,
} from '../../server/readers/shares.ts'

const light = (party = 'light'): Share => ({
  party,
  isKnown: true,
  isHeavy: false,
  isMatching: false,
  isSuspect: false,
})
const unknown = (party = 'unknown'): Share => ({ ...light(party), isKnown: false })
const heavy = (party = 'heavy'): Share => ({ ...light(party), isHeavy: true })
const suspect = (party = 'suspect'): Share => ({ ...heavy(party), isSuspect: true })
const matching = (party = 'matching'): Share => ({ ...heavy(party), isMatching: true })
const LIMITS = { readers: 2, places: 4, heavy: 2 }
/** In which of the readers a query may begin. */
const places = (job: Share, ...readers: Share[][]) =>
  readers.flatMap((_, index) => (mayBegin(job, index, readers, LIMITS) ? [index] : []))
const many = (count: number, party?: string) => Array.from({ length: count }, (_, n) => light(party ?? `${n}`))

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

it('a query of a token that was never seen leaves one reader to those that are known to be light', () => {
  assert.deepEqual(places(unknown(), []), [0])
  assert.deepEqual(places(unknown(), [unknown('other')], [light()]), [0])
  assert.deepEqual(places(unknown(), [heavy()], []), [0])
  assert.deepEqual(places(light(), [unknown()], []), [1])
})

it('only so many heavy queries run at once, and others have the places that they leave', () => {
  assert.deepEqual(places(heavy(), [heavy('a'), heavy('b')], []), [])
  assert.deepEqual(places(unknown(), [heavy('a'), heavy('b')], []), [0])
  assert.ok(!mayStay(0, [[heavy('a'), heavy('b'), heavy('c')], []], LIMITS))
})

it('a reader has so many places', () => {
  assert.deepEqual(places(light(), many(4), many(3)), [1])
})

it('a party has half of the places, and few heavy queries at once', () => {
  assert.deepEqual(places(light(), many(2, 'light'), many(2, 'light')), [])
  assert.deepEqual(places(light(), many(2, 'light'), many(1, 'light')), [0, 1])
  const own = Array.from({ length: MOST_HEAVY_A_PARTY }, () => heavy())
  assert.deepEqual(places(heavy(), own, []), [])
  assert.deepEqual(places(heavy(), [], many(3, 'heavy')), [0])
})

it('a reader uses half of its places while several tenants ask, and one at least', () => {
  const begins = (others: number, limits = LIMITS) =>
    mayBegin(light('own'), 0, [many(others), []], { ...limits, isShared: true })
  assert.ok(begins(1))
  assert.ok(!begins(2))
  assert.ok(begins(0, { ...LIMITS, places: 1 }))
  assert.deepEqual(places(light('own'), many(3), many(4)), [0])
})

it('while there is one reader, heavy queries stay in half of the places that are used', () => {
  const both = [[heavy(), heavy('other')]]
  assert.ok(mayStay(0, both, LIMITS))
  assert.ok(!mayStay(0, both, { ...LIMITS, isShared: true }))
})

it('a party has half of the places that are used, and one at least', () => {
  const begins = (own: number, limits = LIMITS) =>
    mayHaveMore(light('own'), [many(own, 'own'), []], { ...limits, isShared: true })
  assert.ok(begins(1))
  assert.ok(!begins(2))
  assert.ok(begins(0, { ...LIMITS, places: 1 }))
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
  assert.ok(mayStay(0, [[matching(), heavy()], []], LIMITS))
  assert.ok(!mayStay(0, [[matching(), matching('other')], []], LIMITS))
})

it('a query that turns out to be heavy stays where another reader is light', () => {
  assert.ok(mayStay(0, [[heavy()], [light()]], LIMITS))
  assert.ok(!mayStay(0, [[heavy()], [heavy()]], LIMITS))
})

it('of a single reader, heavy queries keep half of the places at most', () => {
  assert.ok(mayStay(0, [[heavy(), heavy()]], LIMITS))
  assert.ok(!mayStay(0, [[heavy(), heavy(), heavy()]], LIMITS))
  assert.ok(mayStay(0, [[heavy()]], { readers: 3, places: 1, heavy: 1 }))
})

it('what is not light begins beside no light query, where there is another reader', () => {
  assert.deepEqual(places(unknown(), [light()], []), [1])
  assert.deepEqual(places(heavy(), [light()], [unknown(), unknown('other')]), [1])
  assert.deepEqual(places(unknown(), [light()], [light('other')]), [0, 1])
})

it('while a reader is replaced, light queries wait for it, and others begin in none that has light ones alone', () => {
  const begins = (job: Share, ...readers: Share[][]) => mayBegin(job, 0, readers, { ...LIMITS, isReplacing: true })
  assert.ok(!begins(light(), [heavy()]))
  assert.ok(begins(light(), [light('other')]))
  assert.ok(!begins(unknown(), [light()]))
  assert.ok(!begins(unknown(), []))
})

it('a light query begins anew elsewhere, when what runs beside it is not light', () => {
  assert.ok(mayMove(light(), 0, [[light(), heavy()], []], LIMITS))
  assert.ok(mayMove(light(), 0, [[light(), unknown()], [light('other')]], LIMITS))
  assert.ok(!mayMove(light(), 0, [[light()], []], LIMITS))
  assert.ok(!mayMove(light(), 0, [[light(), heavy()], [unknown()]], LIMITS))
  assert.ok(!mayMove(light(), 0, [[light(), heavy()], many(4)], LIMITS))
  assert.ok(!mayMove(unknown(), 0, [[unknown(), heavy()], []], LIMITS))
})

it('of several tenants, each leaves a reader to the others', () => {
  const shared = { ...LIMITS, readers: 4, isShared: true }
  const begins = (job: Share, ...readers: Share[][]) =>
    readers.flatMap((_, index) => (mayBegin(job, index, readers, shared) ? [index] : []))
  assert.deepEqual(begins(light('a'), [light('a')], []), [0])
  assert.deepEqual(begins(light('a'), [light('a')], [light('b')]), [0])
  assert.deepEqual(begins(light('a'), [light('b')], []), [0, 1])
  assert.deepEqual(begins(unknown('a'), [light('a')], []), [0])
  assert.deepEqual(begins(light('a'), [light('a')], [], []), [0, 1, 2])
  assert.deepEqual(begins(light('a'), [light('a')], [light('a')], []), [0, 1])
  assert.deepEqual(begins(light('a'), []), [0])
})

it('of several tenants, one has its light queries beside its heavy ones', () => {
  const shared = { ...LIMITS, isShared: true }
  assert.ok(mayBegin(light('a'), 0, [[heavy('a')], []], shared))
  assert.ok(mayBegin(heavy('a'), 0, [[light('a')], []], shared))
  assert.ok(!mayBegin(light('b'), 0, [[heavy('a')], []], shared))
  assert.ok(!mayBegin(heavy('b'), 0, [[light('a')], []], shared))
  assert.ok(!mayMove(light('a'), 0, [[light('a'), heavy('a')], []], shared))
  assert.ok(mayMove(light('b'), 0, [[light('b'), heavy('a')], []], shared))
})

it('a reader that has ended is being replaced from that moment on, unless none can be started', () => {
  assert.ok(isReplacing({ ready: 1, all: 1, mayStart: true }))
  assert.ok(isReplacing({ ready: 1, all: 2, mayStart: false }))
  assert.ok(!isReplacing({ ready: 1, all: 1, mayStart: false }))
  assert.ok(!isReplacing({ ready: 2, all: 2, mayStart: true }))
})
