import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { GROUPS_AT_ONCE, GroupCommit, LARGEST_GROUP, type Made } from '../../server/domain/group-commit.ts'

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

/** As many groups under way as there may be, each of one. */
const occupied = async () => {
  const one = held()
  const first: Promise<Made<string> | undefined>[] = []
  for (let n = 1; n <= GROUPS_AT_ONCE; n++) {
    first.push(one.make(`first ${n}`))
    await turn()
    await turn()
  }
  assert.equal(one.groups.length, GROUPS_AT_ONCE)
  return { ...one, first }
}

const results = (group: string[]): Results => group.map(result => ({ result }))
const resultsOf = async (made: Promise<Made<string> | undefined>[]) => (await Promise.all(made)).map(one => one?.result)

describe('a group commit', () => {
  it('begins with a change at once where nothing is under way', async () => {
    const { make, groups, ends } = held()
    const made = make('one')
    await turn()
    await turn()
    assert.deepEqual(groups, [['one']])
    ends[0]!(results(['one']))
    assert.deepEqual(await resultsOf([made]), ['one'])
  })

  it('makes together what arrives in one turn of the event loop', async () => {
    const { make, groups } = held()
    for (const change of ['a', 'b', 'c']) void make(change)
    await turn()
    await turn()
    assert.deepEqual(groups, [['a', 'b', 'c']])
  })

  it('makes what arrives meanwhile together, as soon as one of those under way ends', async () => {
    const { make, groups, ends, first } = await occupied()
    const waiting = ['a', 'b', 'c'].map(make)
    await turn()
    await turn()
    assert.equal(groups.length, GROUPS_AT_ONCE, 'they wait')
    ends[0]!(results(groups[0]!))
    await first[0]
    await turn()
    await turn()
    assert.deepEqual(groups.at(-1), ['a', 'b', 'c'])
    ends.at(-1)!(results(groups.at(-1)!))
    assert.deepEqual(await resultsOf(waiting), ['a', 'b', 'c'])
  })

  it('is no larger than its limit, and the rest is the next one', async () => {
    const { make, groups, ends, first } = await occupied()
    for (let n = 0; n <= LARGEST_GROUP; n++) void make(String(n))
    ends[0]!(results(groups[0]!))
    await first[0]
    await turn()
    await turn()
    assert.equal(groups.at(-1)!.length, LARGEST_GROUP)
    ends.at(-1)!(results(groups.at(-1)!))
    await turn()
    await turn()
    assert.deepEqual(groups.at(-1), [String(LARGEST_GROUP)])
  })

  it('leaves to be made alone what the group could not make', async () => {
    const { make, groups, ends } = held()
    const made = ['a', 'b'].map(make)
    await turn()
    await turn()
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
})
