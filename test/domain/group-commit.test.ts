import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { GroupCommit, LARGEST_GROUP, type Made } from '../../server/domain/group-commit.ts'

type Results = (Made<string> | undefined)[]

/** A commit that a test ends. */
const held = () => {
  const groups: string[][] = []
  const ends: ((made: Results) => void)[] = []
  const commit = (group: string[]) =>
    new Promise<Results>(resolve => {
      groups.push(group)
      ends.push(resolve)
    })
  const commits = new GroupCommit(commit)
  return { groups, ends, make: (change: string) => commits.make(change) }
}

/** A group of one under way. */
const occupied = async () => {
  const one = held()
  const first = one.make('first')
  await begun()
  assert.deepEqual(one.groups, [['first']])
  return { ...one, first }
}

/** A group that may begin has begun after this. */
const begun = async (): Promise<void> => {
  await turn()
  await turn()
}

const results = (group: string[]): Results => group.map(result => ({ result }))
const resultsOf = async (made: Promise<Made<string> | undefined>[]) => (await Promise.all(made)).map(one => one?.result)

describe('a group commit', () => {
  it('begins with a change at once where nothing is under way', async () => {
    const { make, groups, ends } = held()
    const made = make('one')
    await begun()
    assert.deepEqual(groups, [['one']])
    ends[0]!(results(['one']))
    assert.deepEqual(await resultsOf([made]), ['one'])
  })

  it('makes together what arrives in one turn of the event loop', async () => {
    const { make, groups } = held()
    for (const change of ['a', 'b', 'c']) void make(change)
    await begun()
    assert.deepEqual(groups, [['a', 'b', 'c']])
  })

  it('makes what arrives meanwhile together, as soon as the one under way ends', async () => {
    const { make, groups, ends, first } = await occupied()
    const waiting = ['a', 'b', 'c'].map(make)
    await begun()
    assert.equal(groups.length, 1, 'they wait')
    ends[0]!(results(groups[0]!))
    await first
    await begun()
    assert.deepEqual(groups.at(-1), ['a', 'b', 'c'])
    ends.at(-1)!(results(groups.at(-1)!))
    assert.deepEqual(await resultsOf(waiting), ['a', 'b', 'c'])
  })

  it('is no larger than its limit, and the rest is the next one', async () => {
    const { make, groups, ends, first } = await occupied()
    for (let n = 0; n <= LARGEST_GROUP; n++) void make(String(n))
    ends[0]!(results(groups[0]!))
    await first
    await begun()
    assert.equal(groups.at(-1)!.length, LARGEST_GROUP)
    ends.at(-1)!(results(groups.at(-1)!))
    await begun()
    assert.deepEqual(groups.at(-1), [String(LARGEST_GROUP)])
  })

  it('leaves to be made alone what the group could not make', async () => {
    const { make, groups, ends } = held()
    const made = ['a', 'b'].map(make)
    await begun()
    ends[0]!([undefined, { result: 'b' }])
    assert.deepEqual(groups, [['a', 'b']])
    assert.deepEqual(await resultsOf(made), [undefined, 'b'])
  })

  it('leaves all to be made alone where the group failed, and goes on', async () => {
    let failures = 0
    const commits = new GroupCommit<string, string>(async group => {
      if (failures++ === 0) throw new Error('deadlock')
      return results(group)
    })
    assert.deepEqual(await resultsOf(['a', 'b'].map(change => commits.make(change))), [undefined, undefined])
    assert.deepEqual(await resultsOf([commits.make('c')]), ['c'])
  })

  it('goes on beside one that is stuck, and not beside two', async test => {
    test.mock.timers.enable({ apis: ['setTimeout'] })
    const { make, groups, ends, first } = await occupied()
    const second = make('second')
    test.mock.timers.tick(99)
    await begun()
    assert.equal(groups.length, 1)
    test.mock.timers.tick(1)
    await begun()
    assert.deepEqual(groups.slice(1), [['second']])
    void make('third')
    test.mock.timers.tick(1_000)
    await begun()
    assert.equal(groups.length, 2, 'the third waits')
    ends[1]!(results(['second']))
    assert.deepEqual(await resultsOf([second]), ['second'])
    await begun()
    assert.deepEqual(groups.slice(2), [['third']])
    ends[0]!(results(['first']))
    assert.deepEqual(await resultsOf([first]), ['first'])
  })

  it('waits again for the one under way, once nothing is stuck', async test => {
    test.mock.timers.enable({ apis: ['setTimeout'] })
    const { make, groups, ends, first } = await occupied()
    test.mock.timers.tick(100)
    ends[0]!(results(['first']))
    await first
    void make('second')
    await begun()
    void make('third')
    await begun()
    assert.deepEqual(groups.slice(1), [['second']])
  })
})
