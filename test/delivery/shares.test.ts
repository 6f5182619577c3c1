import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { mayTake, type Share } from '../../server/delivery/shares.ts'

const SHARE: Share = {
  ...{ free: 100, ofTenant: 0, own: 0, aside: 0, hasAnswered: true },
  ...{ probe: undefined, silent: undefined, recovered: undefined },
}

/** How many places one after the other may be taken of 100. */
const most = (places: number, given: (taken: number) => Partial<Share>): number => {
  let taken = 0
  while (mayTake({ ...SHARE, free: places - taken, ofTenant: taken, own: taken, ...given(taken) })) taken += 1
  return taken
}

describe('one more place', () => {
  it('is for nobody where none is free', () => {
    assert.equal(mayTake({ ...SHARE, free: 1 }), true)
    assert.equal(mayTake({ ...SHARE, free: 0 }), false)
  })

  it('is for a webhook alone until it has a quarter of all', () => {
    assert.equal(
      most(100, () => ({})),
      25,
    )
    assert.equal(
      most(512, () => ({})),
      128,
    )
  })

  it('is for the webhooks of a tenant until it has three quarters of all', () => {
    assert.equal(
      most(100, () => ({ own: 0 })),
      75,
    )
  })

  it('is for a tenant’s first webhook also where its share is used up by nobody', () => {
    assert.equal(mayTake({ ...SHARE, free: 1, ofTenant: 0 }), true)
    assert.equal(mayTake({ ...SHARE, free: 1, ofTenant: 3 }), false)
  })

  it('leaves an eighth of a tenant’s places to webhooks that have answered', () => {
    const strangers = most(100, () => ({ own: 0, hasAnswered: false }))
    assert.equal(strangers, 66)
    const [free, ofTenant] = [100 - strangers, strangers]
    assert.equal(mayTake({ ...SHARE, free, ofTenant, hasAnswered: false }), false)
    assert.equal(mayTake({ ...SHARE, free, ofTenant, hasAnswered: true }), true)
  })

  it('counts what a webhook has aside twice: it has these, and others might follow', () => {
    const share = { ...SHARE, free: 40, ofTenant: 0, own: 10 }
    assert.equal(mayTake({ ...share, aside: 9 }), true)
    assert.equal(mayTake({ ...share, aside: 10 }), false)
  })

  it('is for a probed webhook while it has no other attempt, and fewer than a quarter of all are probed', () => {
    const probe = { others: 0, hasRoom: true }
    assert.equal(mayTake({ ...SHARE, probe }), true)
    assert.equal(mayTake({ ...SHARE, probe: { ...probe, others: 1 } }), false)
    assert.equal(mayTake({ ...SHARE, probe: { ...probe, hasRoom: false } }), false)
    assert.equal(mayTake({ ...SHARE, probe, own: 90 }), true, 'its share does not matter')
  })

  it('is for a silent webhook while it waits for none, up to an eighth of what may be set aside', () => {
    const silent = { waits: false, asideLeft: 80 }
    assert.equal(mayTake({ ...SHARE, silent, own: 9 }), true)
    assert.equal(mayTake({ ...SHARE, silent, own: 10 }), false)
    assert.equal(mayTake({ ...SHARE, silent: { ...silent, waits: true } }), false)
    assert.equal(mayTake({ ...SHARE, silent: { waits: false, asideLeft: 0 }, own: 0 }), true, 'one at least')
  })

  it('is for a recovered delivery below a sixteenth of the free places, one at least', () => {
    assert.equal(mayTake({ ...SHARE, free: 160, recovered: 9 }), true)
    assert.equal(mayTake({ ...SHARE, free: 160, recovered: 10 }), false)
    assert.equal(mayTake({ ...SHARE, free: 4, recovered: 0 }), true)
    assert.equal(mayTake({ ...SHARE, free: 4, recovered: 1 }), false)
  })
})
