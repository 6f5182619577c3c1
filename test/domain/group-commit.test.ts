import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { GroupCommit, type Made } from '../../server/domain/group-commit.ts'
import { eventually } from '../support/eventually.ts'

const entering =
  <Result>(groups: GroupCommit<string, Result>) =>
  (change: string) =>
    groups.enter(change)

/** A commit that a test ends. */
const held = (now?: () => number) => {
  const groups: string[][] = []
  const ends: ((made: (Made<string> | undefined)[]) => void)[] = []
  const commit = (group: string[]) =>
    new Promise<(Made<string> | undefined)[]>(resolve => {
      groups.push(group)
      ends.push(resolve)
    })
  return { groups, ends, enter: entering(new GroupCommit(commit, now)) }
}

/** Changes that take all places. */
const occupied = async (now?: () => number) => {
  const one = held(now)
  const turns = [await one.enter('first'), await one.enter('second')]
  return { ...one, turns }
}

const results = (group: string[]) => group.map(result => ({ result }))

describe('a group commit', () => {
  it('lets a change begin at once, alone, where nothing is under way', async () => {
    const { enter, groups } = held()
    const { made } = await enter('one')
    assert.deepEqual([made, groups], [undefined, []])
  })

  it('makes what arrives meanwhile together, when one of those under way ends', async () => {
    const { enter, groups, ends, turns } = await occupied()
    const waiting = ['a', 'b', 'c'].map(enter)
    await turn()
    assert.deepEqual(groups, [])
    turns[0]!.leave()
    await eventually(
      'the group',
      () => groups,
      all => all.length === 1,
    )
    assert.deepEqual(groups, [['a', 'b', 'c']])
    ends[0]!(results(groups[0]!))
    const made = (await Promise.all(waiting)).map(one => one.made?.result)
    assert.deepEqual(made, ['a', 'b', 'c'])
  })

  it('leaves to be made alone what the group could not make', async () => {
    const { enter, groups, ends, turns } = await occupied()
    const waiting = ['a', 'b'].map(enter)
    turns[0]!.leave()
    await eventually(
      'the group',
      () => groups,
      all => all.length === 1,
    )
    ends[0]!([undefined, { result: 'b' }])
    assert.deepEqual(
      (await Promise.all(waiting)).map(one => one.made?.result),
      [undefined, 'b'],
    )
  })

  it('leaves all to be made alone where the group failed', async () => {
    const enter = entering(new GroupCommit<string, string>(() => Promise.reject(new Error('deadlock'))))
    const turns = [await enter('first'), await enter('second')]
    const waiting = ['a', 'b'].map(enter)
    for (const { leave } of turns) leave()
    assert.deepEqual(
      (await Promise.all(waiting)).map(one => one.made),
      [undefined, undefined],
    )
  })

  it('waits for as many as came lately, and no longer than they take', async test => {
    test.mock.timers.enable({ apis: ['setTimeout'] })
    const { enter, groups, ends, turns } = await occupied(() => 0)
    const first = ['a', 'b', 'c'].map(enter)
    for (const { leave } of turns) leave()
    while (groups.length < 1) await turn()
    ends[0]!(results(groups[0]!))
    await Promise.all(first)
    const second = ['d', 'e'].map(enter)
    await turn()
    await turn()
    assert.equal(groups.length, 1, 'two wait for the third')
    second.push(enter('f'))
    await turn()
    assert.deepEqual(groups[1], ['d', 'e', 'f'])
    ends[1]!(results(groups[1]!))
    await Promise.all(second)
    void enter('g')
    test.mock.timers.tick(39)
    await turn()
    const third = enter('h')
    assert.equal(groups.length, 2, 'less than three wait for 40 ms')
    test.mock.timers.tick(1)
    await turn()
    assert.deepEqual(groups[2], ['g', 'h'])
    ends[2]!(results(groups[2]!))
    await third
  })

  it('waits for nobody where changes are few', async test => {
    test.mock.timers.enable({ apis: ['setTimeout'] })
    let now = 0
    const { enter, groups, ends, turns } = await occupied(() => now)
    now = 1_000
    const met = ['a', 'b', 'c'].map(enter)
    for (const { leave } of turns) leave()
    while (groups.length < 1) await turn()
    ends[0]!(results(groups[0]!))
    await Promise.all(met)
    assert.equal((await enter('later')).made, undefined)
  })

  it('never delays a client that waits for each answer', async () => {
    const { enter } = held()
    const startedAt = performance.now()
    for (let n = 0; n < 100; n++) (await enter(String(n))).leave()
    // Each would gather for 40 ms.
    assert.ok(performance.now() - startedAt < 3_500)
  })

  it('goes on beside a transaction that hangs', async () => {
    const { enter } = await occupied()
    assert.equal((await enter('next')).made, undefined)
  })
})
