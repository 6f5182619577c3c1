import assert from 'node:assert/strict'
import { it } from 'node:test'
import { FairShare, FairTurns } from '../../server/readers/fair-share.ts'
import { compareRanks } from '../../server/turns.ts'

/** Serves the given number of queries, one at a time, of keys that always have one waiting: how many each has had. */
const serve = (shares: FairShare, tookMs: Record<string, number>, queries: number): Record<string, number> => {
  const keys = Object.keys(tookMs)
  const served = Object.fromEntries(keys.map(key => [key, 0]))
  for (let n = 0; n < queries; n++) {
    const [first] = keys.toSorted((a, b) => shares.hadMs(a) - shares.hadMs(b)) as [string]
    shares.begin(first, 25, keys)(tookMs[first]!)
    served[first]! += 1
  }
  return served
}

it('those that wait have the same time, however long their queries take', () => {
  const { small, large } = serve(new FairShare(), { small: 10, large: 40 }, 500)
  assert.deepEqual({ small, large }, { small: 400, large: 100 })
})

it('one that has not asked for a while has saved nothing', () => {
  const shares = new FairShare()
  serve(shares, { busy: 20 }, 50)
  assert.deepEqual(serve(shares, { busy: 20, back: 20 }, 10), { busy: 5, back: 5 })
})

it('one that runs several queries at once has had what they are expected to take', () => {
  const shares = new FairShare()
  const waiting = ['many', 'one']
  shares.begin('many', 15, waiting)
  shares.begin('many', 15, waiting)
  assert.ok(shares.hadMs('one') < shares.hadMs('many'))
  shares.begin('one', 40, waiting)
  assert.ok(shares.hadMs('many') < shares.hadMs('one'))
})

it('of what was expected no more is taken back than was counted', () => {
  const shares = new FairShare()
  const waiting = ['quick', 'other', 'none yet']
  shares.begin('other', 25, waiting)(40)
  let queries = 0
  for (; shares.hadMs('quick') <= shares.hadMs('other') && queries < 1_000; queries += 3) {
    // Together they are expected to take more than one may be ahead.
    const ends = [1, 2, 3].map(() => shares.begin('quick', 25, waiting))
    for (const end of ends) end(1)
  }
  assert.equal(queries, 42)
})

it('one that has had much before others came waits for few of their queries', () => {
  const shares = new FairShare()
  shares.begin('before', 25, ['before'])(10_000)
  const { before, others } = serve(shares, { before: 25, others: 25 }, 20)
  assert.deepEqual({ before, others }, { before: 9, others: 11 })
})

it('one that has had much waits for no longer the more others there are', () => {
  for (const [count, most] of [
    [4, 8],
    [20, 20],
    [200, 200],
  ] as const) {
    const shares = new FairShare()
    shares.begin('before', 25, ['before'])(10_000)
    const others = Object.fromEntries(Array.from({ length: count }, (_, n) => [`other ${n}`, 25]))
    const { before, ...served } = serve(shares, { before: 25, ...others }, most + 1)
    assert.equal(before, 1, `${count}: ${JSON.stringify(served)}`)
  }
})

it('a tenant with many tokens has no more than one with a single token, and each token of it the same', () => {
  const turns = new FairTurns()
  const askers = [
    { tenantId: 'many', tokenId: 'a' },
    { tenantId: 'many', tokenId: 'b' },
    { tenantId: 'many', tokenId: 'c' },
    { tenantId: 'single', tokenId: 'd' },
  ]
  const served = { a: 0, b: 0, c: 0, d: 0 }
  for (let n = 0; n < 600; n++) {
    const [first] = askers.toSorted((a, b) => compareRanks(turns.rankOf(a), turns.rankOf(b))) as [(typeof askers)[0]]
    turns.begin(first, 25, askers)(40)
    served[first.tokenId as 'a'] += 1
  }
  assert.deepEqual(served, { a: 100, b: 100, c: 100, d: 300 })
})

it('one that was served before ten thousand others is forgotten, unless it was served again', () => {
  const shares = new FairShare()
  let others = 0
  const serveOnce = (key: string) => shares.begin(key, 25, [key])(100)
  const serveOthers = (count: number) => {
    for (let n = 0; n < count; n++) serveOnce(`${others++}`)
  }
  serveOnce('first')
  serveOthers(6_000)
  serveOnce('first')
  serveOthers(9_999)
  assert.ok(shares.hadMs('first') > shares.hadMs('never'))
  serveOthers(1)
  assert.equal(shares.hadMs('first'), shares.hadMs('never'))
})
