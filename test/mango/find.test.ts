import assert from 'node:assert/strict'
import { after, before, beforeEach, test } from 'node:test'
import fc from 'fast-check'
import type { Knex } from 'knex'
import type { Database } from '../../server/database/connect.ts'
import type { MangoError } from '../../server/mango/error.ts'
import { find, findByParents } from '../../server/mango/find.ts'
import { read } from '../../server/mango/matcher.ts'
import type { MangoQuery, Options } from '../../server/mango/query.ts'
import type { Visible } from '../../server/mango/resource.ts'
import { describeEachEngine } from '../support/databases.ts'
import { cpuMsOf } from '../support/effort.ts'
import { documentsOf, insertWorld, type Maker, makers, type Thing, things, thingsDatabase } from './things.ts'

const idOf = (index: number) => `0190a000-0000-7000-8000-${String(index).padStart(12, '0')}`
const goneId = '0190a000-0000-7000-8000-00000000ffff'

const maker = (index: number, rest: Partial<Maker> = {}): Maker => ({
  ...{ id: idOf(index), name: `Maker ${index}`, rank: null, parentId: null },
  ...rest,
})

const thing = (index: number, rest: Partial<Thing> = {}): Thing => ({
  ...{ id: idOf(index), name: `Thing ${index}`, note: null, code: 'a', status: 'open', count: index, score: null },
  ...{ live: true, createdAt: 1_700_000_000_000 + index, endedAt: null, day: null, makerId: null },
  ...{ payload: {}, tags: [], parts: [] },
  ...rest,
})

/** Walks for each sort; `TIDINGS_TEST_WALKS=1000` for all that a change of the walk deserves. */
const WALKS = Number(process.env.TIDINGS_TEST_WALKS ?? 3)
const SIZE = { minLength: 30, maxLength: 30 }

describeEachEngine('find', engine => {
  let database: Database
  let drop: () => Promise<void>
  before(async () => {
    const fresh = await thingsDatabase(engine)
    database = fresh.database
    drop = fresh.drop
  })
  after(() => drop())
  beforeEach(() => insertWorld(database, { makers: [], things: [] }))

  const found = async (query: MangoQuery, visible: Visible = () => {}, options: Options = {}) => {
    const { rows } = await find(database.knex, things, query, visible, options)
    return rows.map(row => row.id)
  }
  const refused = async (query: MangoQuery, visible: Visible = () => {}): Promise<MangoError> =>
    found(query, visible).then(
      () => assert.fail(`not refused: ${JSON.stringify(query)}`),
      error => error,
    )

  test('rows come as they are in the table, in the order of their ids', async () => {
    await insertWorld(database, { makers: [maker(1)], things: [thing(2), thing(1, { makerId: idOf(1) })] })
    const { rows } = await find(database.knex, things, undefined, () => {})
    assert.deepEqual(
      rows.map(row => ({ ...row })),
      [
        {
          ...{
            id: idOf(1),
            name: 'Thing 1',
            note: null,
            code: 'a',
            status: 'open',
            count_number: 1,
            score: null,
            live: 1,
          },
          ...{ created_at: 1_700_000_000_001, ended_at: null, day: null, maker_id: idOf(1), payload: '{}' },
        },
        {
          ...{
            id: idOf(2),
            name: 'Thing 2',
            note: null,
            code: 'a',
            status: 'open',
            count_number: 2,
            score: null,
            live: 1,
          },
          ...{ created_at: 1_700_000_000_002, ended_at: null, day: null, maker_id: null, payload: '{}' },
        },
      ],
    )
  })

  test('rows sorted by a related field come without anything added to them', async () => {
    await insertWorld(database, { makers: [maker(1)], things: [thing(1, { makerId: idOf(1) })] })
    const { rows } = await find(database.knex, things, { sort: ['maker.name'] }, () => {})
    assert.equal(Object.keys(rows[0]!).length, 13)
  })

  test('more rows than may come without a limit are an error that says how to page', async () => {
    await insertWorld(database, { makers: Array.from({ length: 10_001 }, (_, index) => maker(index)), things: [] })
    const all = (query: MangoQuery) => find(database.knex, makers, query, () => {})
    await assert.rejects(all({}), (error: MangoError) => {
      assert.equal(error.code, 'RESULT_TOO_LARGE')
      assert.match(error.message, /More than 10,000 makers match.*limit.*after/)
      return true
    })
    await assert.rejects(all({ selector: { name: { $regex: 'Mak(e)r' } } }), { code: 'RESULT_TOO_LARGE' })
    await assert.rejects(all({ selector: { name: { $regex: 'Mak(e)r' } }, sort: [{ rank: 'desc' }] }), {
      code: 'RESULT_TOO_LARGE',
    })
    assert.equal((await all({ selector: { id: { $gt: idOf(0) } } })).rows.length, 10_000)
    assert.equal((await all({ limit: 10_000 })).rows.length, 10_000)
  })

  test('limit, skip and after are checked', async () => {
    for (const limit of [-1, 1.5, 10_001, '5' as never, true as never]) {
      const error = await refused({ limit })
      assert.equal(error.code, 'BAD_USER_INPUT')
      assert.match(error.message, /^limit: must be a whole number from 0 to 10000/)
    }
    assert.match((await refused({ skip: -1 })).message, /^skip: must be a whole number of 0 or more, not -1/)
    const patterned = { selector: { name: { $regex: '(.)' } } }
    assert.match((await refused({ skip: 20_001, ...patterned })).message, /^skip: .*page with after/)
    assert.deepEqual(await found({ skip: 20_000, ...patterned }), [])
    assert.match(
      (await refused({ after: 'x' })).message,
      /^after: must be the id of the last row seen, a UUID, not "x"/,
    )
  })

  test('a limit of 0 finds nothing, and its selector is checked all the same', async () => {
    await insertWorld(database, { makers: [], things: [thing(1)] })
    assert.deepEqual(await found({ limit: 0 }), [])
    assert.equal((await refused({ limit: 0, selector: { nmae: 1 } })).code, 'BAD_USER_INPUT')
  })

  test('a sort is checked', async () => {
    const cases: [unknown, RegExp][] = [
      ['name', /^sort: must be a list/],
      [[5], /^sort\[0\]: must be a field, such as "name"/],
      [[{ name: 'up' }], /^sort\[0\]: must be a field/],
      [[{ name: 'asc', id: 'asc' }], /^sort\[0\]: must be a field/],
      [['nmae'], /^sort\[0\]: things have no field "nmae"; did you mean name\?/],
      [['id', 'maker.nam'], /^sort\[1\]: makers have no field "nam"/],
      [['maker'], /^sort\[0\]: "maker" is an object; name one of its fields/],
      [['parts'], /^sort\[0\]: "parts" is an object/],
      [['name.first'], /^sort\[0\]: leads into a string/],
      [Array(9).fill('name'), /^sort: has 9 fields; at most 8 are allowed/],
    ]
    for (const [sort, message] of cases) assert.match((await refused({ sort: sort as unknown[] })).message, message)
  })

  test('equal rows are in the order of their ids, in the direction of the sort', async () => {
    await insertWorld(database, { makers: [], things: [thing(1), thing(2, { name: 'A' }), thing(3, { name: 'A' })] })
    assert.deepEqual(await found({ sort: ['name'] }), [idOf(2), idOf(3), idOf(1)])
    assert.deepEqual(await found({ sort: [{ name: 'desc' }] }), [idOf(1), idOf(3), idOf(2)])
  })

  for (const sort of [
    [],
    [{ id: 'desc' }],
    ['name'],
    [{ name: 'desc' }],
    [{ score: 'desc' }, 'name'],
    ['maker.name'],
    ['payload.a'],
    [{ 'payload.a': 'desc' }],
  ]) {
    for (const selector of [{}, { name: { $regex: '^([A-D])' } }]) {
      const walk = `${JSON.stringify(sort)} of ${JSON.stringify(selector)}`
      test(`after walks all rows once by ${walk} while rows come and go`, async () => {
        const some = (index: number) =>
          thing(index, {
            name: 'ABCD'[index % 4]!,
            score: [null, 1, 2][index % 3]!,
            makerId: index % 5 === 0 ? null : idOf(index % 5),
            payload: index % 7 === 0 ? {} : { a: [null, 'x', 5, false][index % 4]! },
          })
        const world = {
          makers: [1, 2, 3, 4].map(index => maker(index)),
          things: Array.from({ length: 60 }, (_, index) => some(index)),
        }
        await insertWorld(database, world)
        const seen: unknown[] = []
        const { knex } = database
        for (let last: string | null = null; ; ) {
          const page = await found({ selector, sort, limit: 7, after: last })
          seen.push(...page)
          if (page.length < 7) break
          last = page.at(-1) as string
          // Rows that are neither the last one seen nor among those that must be met.
          await knex('things')
            .where('id', idOf(1_000 + seen.length - 7))
            .del()
          await knex('things').insert({
            ...(await knex('things').where('id', idOf(1)).first()),
            id: idOf(1_000 + seen.length),
          })
        }
        const original = seen.filter(id => (id as string) < idOf(1_000))
        assert.equal(new Set(seen).size, seen.length)
        assert.equal(original.length, 60)
      })
    }
  }

  for (const sort of [
    ['name'],
    [{ name: 'desc' }, { score: 'asc' }],
    [{ score: 'desc' }],
    [{ live: 'desc' }, 'endedAt'],
    ['day', { makerId: 'desc' }],
    ['maker.name'],
    ['payload.a', { count: 'desc' }],
    ['tags'],
    ['parts.0.note'],
    [{ createdAt: 'desc' }, 'id', 'name'],
  ]) {
    test(`afterValues walks by ${JSON.stringify(sort)} past what stays once, whatever the rest becomes`, async () => {
      const numbers = (max: number) => fc.array(fc.nat({ max }), { minLength: 12, maxLength: 12 })
      const changes = fc.array(fc.record({ at: fc.nat({ max: 29 }), to: numbers(3), gone: fc.boolean() }), {
        maxLength: 8,
      })
      const anything = (index: number, of: number[]) =>
        thing(index, {
          ...{ name: ['a', 'é', '\u{1f600}', 'a '][of[0]!]!, score: [null, 1, 2, -1][of[1]!]!, live: of[2]! > 1 },
          ...{ endedAt: [null, 1, 2, 3][of[3]!]!, day: [null, '2026-01-02', '2026-01-01', null][of[4]!]! },
          ...{ makerId: [null, idOf(1), idOf(2), idOf(9)][of[5]!]!, count: of[6]!, createdAt: 1_000 + of[7]! },
          ...{ payload: [{}, { a: null }, { a: [1, { b: 'é' }] }, { a: 1.5 }][of[8]!]! },
          ...{ tags: [[], ['x'], ['x', 'y'], ['a']][of[9]!]! },
          ...{
            parts: of[10]! > 1 ? [{ number: 0, note: ['a', 'b', 'c', null][of[11]!]!, good: true, makerId: null }] : [],
          },
        })
      const walk = fc.record({ limit: fc.integer({ min: 1, max: 7 }), rows: fc.array(numbers(3), SIZE), changes })
      await fc.assert(
        fc.asyncProperty(walk, async ({ limit, rows, changes: planned }) => {
          const all = rows.map((of, index) => anything(index, of))
          const world = () => ({
            makers: [1, 2].map(index => maker(index)),
            things: all.filter(one => one !== undefined),
          })
          await insertWorld(database, world())
          const touched = new Set<string>()
          const seen: string[] = []
          for (let place = {}; ; ) {
            const documents = new Map(documentsOf(world()).map(document => [document.id as string, document]))
            const page = (await found({ sort, limit, ...place })) as string[]
            seen.push(...page)
            if (page.length < limit) break
            const last = page.at(-1)!
            const values = sort.map(key => {
              const path = typeof key === 'string' ? key : Object.keys(key)[0]!
              const value = read(documents.get(last)!, path.split('.'))
              return typeof value === 'symbol' ? null : value
            })
            place = { after: last, afterValues: values }
            // The last row seen, and one more.
            const { at, to, gone } = planned.pop() ?? { at: 0, to: Array<number>(12).fill(0), gone: false }
            for (const id of [last, idOf(at)]) {
              const index = all.findIndex(one => one?.id === id)
              if (index === -1) continue
              touched.add(id)
              if (gone) all.splice(index, 1)
              else all[index] = anything(Number(id.slice(-12)), to)
            }
            await insertWorld(database, world())
            if (seen.length > 500) break
          }
          const stayed = rows.map((_, index) => idOf(index)).filter(id => !touched.has(id))
          const met = seen.filter(id => !touched.has(id)).toSorted()
          assert.deepEqual(met, stayed)
        }),
        { numRuns: WALKS },
      )
    })
  }

  test('$in takes the ids of a whole page, beside other conditions', async () => {
    await insertWorld(database, { makers: [], things: [thing(1), thing(20_000)] })
    const ids = Array.from({ length: 10_000 }, (_, index) => idOf(index))
    assert.deepEqual(await found({ selector: { $and: [{ id: { $in: ids } }, { status: 'open' }] } }), [idOf(1)])
  })

  test('afterValues are checked, and go with after', async () => {
    const after = idOf(1)
    const cases: [MangoQuery, RegExp][] = [
      [{ afterValues: [] }, /^afterValues: needs after/],
      [
        { after, afterValues: 'x' as never },
        /^afterValues: must be a list with one value for each field of sort, not string/,
      ],
      [{ after, afterValues: ['x'] }, /^afterValues: has 1 values; .* each of the 0 fields of sort/],
      [
        { after, sort: ['name', 'count'], afterValues: ['x'] },
        /^afterValues: has 1 values; .* each of the 2 fields of sort/,
      ],
      [
        { after, sort: ['name'], afterValues: [5] },
        /^afterValues\[0\]: .* type string; it must be of that type or null, not number/,
      ],
      [{ after, sort: ['count'], afterValues: ['5'] }, /^afterValues\[0\]: .* type integer; .* not string/],
      [{ after, sort: ['count'], afterValues: [1.5] }, /^afterValues\[0\]: must be a whole number/],
      [{ after, sort: ['name', 'live'], afterValues: ['x', 1] }, /^afterValues\[1\]: .* type boolean; .* not number/],
      [{ after, sort: ['createdAt'], afterValues: [5] }, /^afterValues\[0\]: takes a time in ISO 8601/],
      [{ after, sort: ['day'], afterValues: ['x'] }, /^afterValues\[0\]: takes a date, such as/],
      [{ after, sort: ['tags'], afterValues: ['x'] }, /^afterValues\[0\]: .* type list; .* not string/],
      [
        { after, sort: ['payload.a'], afterValues: [JSON.parse(`${'['.repeat(5_000)}${']'.repeat(5_000)}`)] },
        /^afterValues\[0\]: is nested deeper than/,
      ],
    ]
    for (const [query, message] of cases) {
      const error = await refused(query)
      assert.equal(error.code, 'BAD_USER_INPUT')
      assert.match(error.message, message)
    }
  })

  test('afterValues go on after a row that is gone, or was never seen', async () => {
    await insertWorld(database, { makers: [], things: [thing(1, { name: 'b' }), thing(2, { name: 'c' })] })
    assert.deepEqual(await found({ after: goneId, sort: ['name'], afterValues: ['b'] }), [idOf(2)])
    assert.deepEqual(await found({ after: goneId, sort: ['name'], afterValues: [null] }), [idOf(1), idOf(2)])
    assert.deepEqual(await found({ after: goneId, afterValues: [] }), [])
    assert.deepEqual(await found({ after: goneId, sort: [{ code: 'desc' }], afterValues: ['é'] }), [idOf(2), idOf(1)])
  })

  test('an object is no list, whatever its elements are to match', async () => {
    await insertWorld(database, { makers: [maker(1)], things: [thing(1, { makerId: idOf(1) }), thing(2)] })
    assert.deepEqual(await found({ selector: { maker: { $elemMatch: { name: 'Maker 1' } } } }), [])
    assert.deepEqual(await found({ selector: { maker: { $not: { $allMatch: { name: 'x' } } } } }), [idOf(1), idOf(2)])
    const error = await refused({ selector: { maker: { $elemMatch: { nmae: 'x' } } } })
    assert.match(error.message, /makers have no field "nmae"; did you mean name/)
  })

  test('after a row that is gone, a walk by id goes on', async () => {
    await insertWorld(database, { makers: [], things: [thing(1), thing(3)] })
    assert.deepEqual(await found({ after: idOf(2) }), [idOf(3)])
    assert.deepEqual(await found({ after: idOf(2), sort: [{ id: 'desc' }] }), [idOf(1)])
    assert.deepEqual(await found({ after: idOf(2), selector: { name: { $regex: 'T.*g' } } }), [idOf(3)])
  })

  test('after a row that is gone, a walk by another field says so, and the same of an invisible row', async () => {
    await insertWorld(database, { makers: [], things: [thing(1), thing(2)] })
    const gone = await refused({ after: goneId, sort: ['name'] })
    assert.equal(gone.code, 'BAD_USER_INPUT')
    assert.match(gone.message, /^after: no row .* sort by id/)
    const hidden = await refused(
      { after: idOf(2), sort: ['name'] },
      builder => void builder.where('things.id', idOf(1)),
    )
    assert.equal(hidden.message.replace(idOf(2), goneId), gone.message)
  })

  test('after a row that does not match the selector, a walk goes on', async () => {
    await insertWorld(database, {
      makers: [maker(1)],
      things: [thing(1, { name: 'B' }), thing(2, { name: 'C', makerId: idOf(1) })],
    })
    assert.deepEqual(await found({ selector: { 'maker.name': 'Maker 1' }, sort: ['name'], after: idOf(1) }), [idOf(2)])
  })

  test('rows that are not visible are not found, whatever the selector', async () => {
    await insertWorld(database, { makers: [], things: [thing(1), thing(2)] })
    const visible = (builder: Knex.QueryBuilder) => void builder.where('things.id', idOf(1))
    for (const selector of [
      {},
      { $or: [{ id: idOf(2) }, { name: { $regex: '(.)' } }] },
      { $not: { id: idOf(1) } },
      { $or: [] },
    ]) {
      assert.ok(!(await found({ selector }, visible)).includes(idOf(2)))
    }
  })

  test('a related row that is not visible is no relation', async () => {
    await insertWorld(database, { makers: [maker(1)], things: [thing(1, { makerId: idOf(1) })] })
    const related = () => (builder: Knex.QueryBuilder) => void builder.where('makers.id', goneId)
    assert.deepEqual(await found({ selector: { 'maker.name': { $regex: 'M(.*)r' } } }, () => {}, { related }), [])
    assert.deepEqual(await found({ selector: { 'maker.name': 'Maker 1' } }, () => {}, { related }), [])
    assert.deepEqual(await found({ selector: { maker: null } }, () => {}, { related }), [idOf(1)])
    assert.deepEqual(await found({ selector: { maker: null } }), [])
  })

  test('times with any offset are compared as instants', async () => {
    await insertWorld(database, {
      makers: [],
      things: [thing(1, { createdAt: Date.parse('2026-11-21T00:40:01.123Z') })],
    })
    assert.deepEqual(await found({ selector: { createdAt: '2026-11-21T02:40:01.123+02:00' } }), [idOf(1)])
    assert.deepEqual(await found({ selector: { createdAt: { $gte: '2026-11-21' } } }), [idOf(1)])
    assert.deepEqual(await found({ selector: { createdAt: { $lt: '2026-11-20T23:00:00-01:40' } } }), [])
    assert.deepEqual(await found({ selector: { createdAt: { $beginsWith: '2026-11-21T00:4' } } }), [idOf(1)])
    assert.deepEqual(await found({ selector: { createdAt: { $regex: '^2026-1[12]' } } }), [idOf(1)])
  })

  test('whole numbers in a column compare with any number', async () => {
    await insertWorld(database, { makers: [], things: [-1, 0, 1, 2].map(count => thing(count + 2, { count })) })
    const counted = async (condition: unknown) =>
      (await found({ selector: { count: condition } })).map(id => Number((id as string).slice(-2)) - 2)
    assert.deepEqual(await counted({ $gte: 0.5 }), [1, 2])
    assert.deepEqual(await counted({ $gt: 0.5 }), [1, 2])
    assert.deepEqual(await counted({ $lt: -0.5 }), [-1])
    assert.deepEqual(await counted({ $lte: -0.5 }), [-1])
    assert.deepEqual(await counted({ $eq: 0.5 }), [])
    assert.deepEqual(await counted({ $ne: 0.5 }), [-1, 0, 1, 2])
    assert.deepEqual(await counted({ $in: [1.5, 1, -0, '2'] }), [0, 1])
    assert.deepEqual(await counted({ $gt: -1e300 }), [-1, 0, 1, 2])
    assert.deepEqual(await counted({ $mod: [2, -1] }), [-1])
  })

  test('a field that JSON does not have is missing, and null in it is not', async () => {
    const payloads = [{}, { a: null }, { a: { b: 1 } }, { a: 1 }]
    await insertWorld(database, { makers: [], things: payloads.map((payload, index) => thing(index, { payload })) })
    assert.deepEqual(await found({ selector: { 'payload.a': { $exists: false } } }), [idOf(0)])
    assert.deepEqual(await found({ selector: { 'payload.a.b': { $exists: false } } }), [idOf(0)])
    assert.deepEqual(await found({ selector: { 'payload.a': null } }), [idOf(1)])
    assert.deepEqual(await found({ selector: { 'payload.a': { $not: { $eq: 1 } } } }), [idOf(1), idOf(2)])
    assert.deepEqual(await found({ selector: { payload: {} } }), [idOf(0)])
  })

  test('explain says what SQL was asked, which indexes it used, and that nothing was left', async () => {
    await insertWorld(database, { makers: [], things: Array.from({ length: 500 }, (_, index) => thing(index)) })
    if (database.dialect.engine !== 'sqlite') await database.knex.raw('ANALYZE TABLE things')
    const { explain } = await find(database.knex, things, { selector: { name: 'Thing 7' } }, () => {}, {
      explain: true,
    })
    assert.match(explain.sql!, /things\.name = \?/)
    assert.deepEqual(explain.indexes, ['things.things_by_name'])
    assert.deepEqual(explain.matchedRowByRow, [])
    assert.deepEqual([explain.statements, explain.rowsExamined], [1, 1])
  })

  test('explain says what was left to TypeScript, of rows that a literal has narrowed down', async () => {
    const world = Array.from({ length: 500 }, (_, index) => thing(index, { payload: { a: { b: `v${index}` } } }))
    await insertWorld(database, { makers: [], things: world })
    const explained = async (query: MangoQuery) => (await find(database.knex, things, query, () => {})).explain
    const pattern = await explained({ selector: { name: { $regex: '(?i)^thing 7$' } }, sort: ['payload.a.b'] })
    assert.deepEqual(pattern.matchedRowByRow, ['name $regex'])
    assert.deepEqual(pattern.sortedAfterwards, ['payload.a.b'])
    assert.ok(pattern.rowsExamined < 120, String(pattern.rowsExamined))
    const payload = await explained({ selector: { 'payload.a.b': 'v123' } })
    assert.deepEqual(payload.matchedRowByRow, ['payload.a.b $eq'])
    assert.equal(payload.rowsExamined, 1)
    assert.equal((await explained({ selector: { name: { $regex: '^Thing 7' } } })).matchedRowByRow.length, 0)
  })

  test('a pattern of fixed length is left to a database that has regular expressions', async () => {
    await insertWorld(database, {
      makers: [],
      things: ['ab12', 'ab1', 'AB12'].map((name, nth) => thing(nth, { name })),
    })
    const query = { selector: { name: { $regex: '^[a-z]{2}[0-9]{2}$' } } }
    const { rows, explain } = await find(database.knex, things, query, () => {})
    assert.deepEqual(
      rows.map(row => row.name),
      ['ab12'],
    )
    assert.deepEqual(explain.matchedRowByRow, database.dialect.engine === 'sqlite' ? ['name $regex'] : [])
  })

  test('a selector that nothing can match asks the database nothing', async () => {
    const { rows, explain } = await find(database.knex, things, { selector: { count: 'x' } }, () => {})
    assert.deepEqual(rows, [])
    assert.deepEqual([explain.sql, explain.statements], [null, 0])
  })

  test('text that would be SQL, a wildcard or a placeholder is text', async () => {
    const names = ["a' OR '1'='1", '50%', 'a_c', '?', '??', ':id', 'a\\b', '"q"', '`', '#', '--', '\u0000x', 'é', '😀']
    await insertWorld(database, {
      makers: [],
      things: names.map((name, index) => thing(index, { name, payload: { name } })),
    })
    for (const [index, name] of names.entries()) {
      assert.deepEqual(await found({ selector: { name } }), [idOf(index)], name)
      assert.deepEqual(await found({ selector: { 'payload.name': name } }), [idOf(index)], name)
      assert.deepEqual(await found({ selector: { code: name } }), [], name)
      assert.deepEqual(await found({ selector: { id: { $beginsWith: name } } }), [], name)
    }
  })

  test('(?i) knows the letters beyond ASCII that are ASCII letters in another case', async () => {
    const names = ['K', 'k', '\u212a', 's', '\u017f', 'x']
    await insertWorld(database, { makers: [], things: names.map((name, index) => thing(index, { name })) })
    assert.deepEqual(await found({ selector: { name: { $regex: '(?i)k' } } }), [idOf(0), idOf(1), idOf(2)])
    assert.deepEqual(await found({ selector: { name: { $regex: '(?i)S' } } }), [idOf(3), idOf(4)])
  })

  test('a prefix may end with any character', async () => {
    const prefixes = ['\u007f', '\u0080', '\ud7ff', '\ue000', '\uffff', '\u{10000}', '\u{10ffff}', 'a\u{10ffff}']
    const names = prefixes.flatMap(prefix => [prefix, `${prefix}z`])
    await insertWorld(database, { makers: [], things: names.map((name, index) => thing(index, { name })) })
    for (const [index, prefix] of prefixes.entries()) {
      assert.deepEqual(await found({ selector: { name: { $beginsWith: prefix } } }), [
        idOf(index * 2),
        idOf(index * 2 + 1),
      ])
    }
  })

  test('a pattern that makes other engines backtrack answers at once on long names, and holds up nobody', async () => {
    await insertWorld(database, {
      makers: [],
      things: Array.from({ length: 2_000 }, (_, index) => thing(index, { name: `${'a'.repeat(250)}!` })),
    })
    let served = 0
    const timer = setInterval(() => {
      served += 1
    }, 1)
    const startedAt = performance.now()
    const spentMs = await cpuMsOf(async () => {
      assert.deepEqual(await found({ selector: { name: { $regex: '(a+)+$' } } }), [])
      assert.deepEqual(await found({ selector: { name: { $regex: '(\\pL|!){300}' } } }), [])
    })
    const tookMs = performance.now() - startedAt
    clearInterval(timer)
    assert.ok(spentMs < 5_000, `took ${spentMs} ms of a processor`)
    assert.ok(served >= tookMs / 1_000, `${served} others served in ${tookMs} ms`)
  })

  test('the rows of a thousand parents come in one statement, each list cut by itself', async () => {
    const parents = Array.from({ length: 1_000 }, (_, index) => maker(index))
    const children = parents.flatMap(({ id }, index) => [0, 1, 2].map(nth => thing(index * 3 + nth, { makerId: id })))
    await insertWorld(database, { makers: parents, things: children })
    const ids = parents.map(({ id }) => id)
    const asked = (query: MangoQuery, some = ids) =>
      findByParents(database.knex, things, query, () => {}, { column: 'maker_id', ids: some })
    for (const query of [{}, { limit: 2 }, { limit: 2, skip: 1, sort: [{ name: 'desc' }] }]) {
      const { rows, explain } = await asked(query)
      assert.equal(rows.size, 1_000)
      assert.equal(explain.statements, 1)
    }
    const { rows, explain } = await asked({ limit: 1, sort: [{ id: 'desc' }] }, ids.slice(0, 50))
    assert.equal(explain.statements, 1)
    assert.deepEqual(
      rows.get(idOf(7))?.map(row => row.id),
      [idOf(23)],
    )
  })

  test('lists cut for many parents come in one statement, however many rows they are cut from', async () => {
    const parents = Array.from({ length: 250 }, (_, index) => maker(index))
    const children = parents.flatMap(({ id }, index) =>
      Array.from({ length: 84 }, (_, nth) => thing(index * 84 + nth, { makerId: id })),
    )
    await insertWorld(database, { makers: parents, things: children })
    const query = { limit: 2, skip: 1, sort: [{ id: 'desc' }] }
    const { rows, explain } = await findByParents(database.knex, things, query, () => {}, {
      column: 'maker_id',
      ids: parents.map(({ id }) => id),
    })
    assert.equal(explain.statements, 1)
    assert.equal(rows.size, 250)
    assert.deepEqual(
      rows.get(idOf(9))?.map(row => row.id),
      [idOf(9 * 84 + 82), idOf(9 * 84 + 81)],
    )
    assert.ok(!('mango_rank' in rows.get(idOf(9))![0]!))
  })

  test('children without an id of their own are in the order that their resource says', async () => {
    const parts = [1, 2, 3].map(number => ({ number, note: `n${number}`, good: true, makerId: null }))
    await insertWorld(database, { makers: [], things: [thing(1, { parts }), thing(2, { parts: parts.slice(0, 1) })] })
    const resource = (
      things.fields.parts as { resource: () => import('../../server/mango/resource.ts').Resource }
    ).resource()
    const asked = (query: MangoQuery) =>
      findByParents(database.knex, resource, query, () => {}, {
        column: 'thing_id',
        ids: [idOf(1), idOf(2)],
        orderBy: 'number',
      })
    const numbers = async (query: MangoQuery) =>
      Object.fromEntries([...(await asked(query)).rows].map(([id, rows]) => [id.at(-1), rows.map(row => row.number)]))
    assert.deepEqual(await numbers({}), { 1: [1, 2, 3], 2: [1] })
    assert.deepEqual(await numbers({ limit: 1, sort: [{ number: 'desc' }] }), { 1: [3], 2: [1] })
    assert.deepEqual(await numbers({ selector: { note: { $regex: '([23])$' } } }), { 1: [2, 3] })
    await assert.rejects(asked({ after: idOf(1) }), /^MangoError: after: parts have no id/)
  })

  test('a query inside a transaction sees what the transaction wrote', async () => {
    await database.knex.transaction(async trx => {
      await trx('makers').insert({ id: idOf(1), name: 'New' })
      const { rows } = await find(trx, makers, { selector: { name: { $regex: 'N.w' } } }, () => {})
      assert.equal(rows.length, 1)
    })
  })
})
