import assert from 'node:assert/strict'
import { it } from 'node:test'
import { otherWork } from '../../server/event-loop.ts'
import { matches } from '../../server/mango/matcher.ts'
import { Matching } from '../../server/mango/matching.ts'
import { unmetered } from '../../server/mango/meter.ts'
import { parseSelector } from '../../server/mango/selector.ts'
import { everyNth } from '../support/size.ts'

/** Each takes milliseconds for a text of 2,000 characters. */
const slow = (end: string) => Array.from({ length: 10 }, (_, n) => ({ url: { $regex: `a.{91${n}}${end}` } }))
const text = (end: string) => `https://example.com/${'a'.repeat(1_960)}${end}`

it('a row with slow patterns lets others have their turn, and is matched as at one go', async () => {
  for (const [selector, isHit] of everyNth(2, [
    [{ $or: [...slow('[c-d]'), { url: { $regex: 'z$' } }] }, true],
    [{ $or: slow('[c-d]') }, false],
    [{ $nor: slow('[c-d]') }, true],
    [{ $and: slow('a') }, true],
  ] as const)) {
    let turns = 0
    const pause = async () => {
      turns += 1
      await otherWork()
    }
    const matching = new Matching({ ...unmetered, pause })
    const condition = parseSelector(selector, matching)
    matching.begin()
    const found = await matching.row(condition, { url: text('z') })
    assert.equal(found, isHit)
    assert.equal(matches(selector, { url: text('z') }), isHit)
    assert.ok(turns >= 2, `${turns} turns`)
  }
})

it('what a pattern found in a row is not taken for the next row', async () => {
  const matching = new Matching(unmetered)
  const condition = parseSelector({ url: { $regex: 'a.{910}[c-d]' } }, matching)
  matching.begin()
  assert.equal(await matching.row(condition, { url: text('z') }), false)
  assert.equal(await matching.row(condition, { url: text('c') }), true)
  assert.equal(await matching.row(condition, { url: text('z') }), false)
})

it('an error that ends a request ends its matching', async () => {
  const end = new Error('over')
  const matching = new Matching({
    ...unmetered,
    look() {
      throw end
    },
  })
  const condition = parseSelector({ url: { $regex: 'a.{910}[c-d]' } }, matching)
  await assert.rejects(async () => matching.row(condition, { url: text('z') }), end)
})
