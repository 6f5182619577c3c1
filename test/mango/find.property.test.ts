import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import type { Knex } from 'knex'
import type { Database } from '../../server/database/connect.ts'
import { count, find, findByParents } from '../../server/mango/find.ts'
import { compare, matches, read } from '../../server/mango/matcher.ts'
import type { Json } from '../../server/mango/selector.ts'
import { describeEachEngine } from '../support/databases.ts'
import { atFullSize } from '../support/size.ts'
import { documentsOf, insertWorld, makers, type Sort, selector, sort, things, thingsDatabase, world } from './things.ts'

const RUNS = Number(process.env.MANGO_RUNS ?? atFullSize(20, 8))
const QUERIES_A_WORLD = 25

type Document = Record<string, Json>

const valueAt = (document: Document, path: string): Json => {
  const found = read(document, path.split('.'))
  return typeof found === 'symbol' ? null : found
}

/** What a sort means, said once more: field by field, and then by id in the direction of the last of them. */
const inOrder = (keys: Sort) => (a: Document, b: Document) => {
  for (const { path, direction } of [...keys, { path: 'id', direction: keys.at(-1)?.direction ?? 'asc' }]) {
    const difference = compare(valueAt(a, path), valueAt(b, path))
    if (difference !== 0) return direction === 'asc' ? difference : -difference
  }
  return 0
}

const written = (keys: Sort) =>
  keys.map(({ path, direction }, index) => (index % 2 === 0 && direction === 'asc' ? path : { [path]: direction }))

const idsOf = (rows: Record<string, unknown>[]) => rows.map(row => row.id)

describeEachEngine('random selectors', engine => {
  let database: Database
  let drop: () => Promise<void>
  before(async () => {
    const fresh = await thingsDatabase(engine)
    database = fresh.database
    drop = fresh.drop
  })
  after(() => drop())

  test('find what the matcher matches, whatever the database', async () => {
    const query = fc.record({
      selector,
      sort,
      limit: fc.option(fc.nat({ max: 12 })),
      skip: fc.option(fc.nat({ max: 4 })),
      from: fc.option(fc.nat({ max: 50 })),
    })
    await fc.assert(
      fc.asyncProperty(
        world,
        fc.array(query, { minLength: QUERIES_A_WORLD, maxLength: QUERIES_A_WORLD }),
        async (made, queries) => {
          await insertWorld(database, made)
          const documents = documentsOf(made)
          for (const { selector: wanted, sort: keys, limit, skip, from } of queries) {
            const last = from === null ? undefined : documents[from % documents.length]
            const expected = documents
              .filter(document => matches(wanted, document))
              .sort(inOrder(keys))
              .filter(document => last === undefined || inOrder(keys)(document, last) > 0)
              .slice(skip ?? 0, limit === null ? undefined : (skip ?? 0) + limit)
            const asked = { selector: wanted, sort: written(keys), limit, skip, after: (last?.id as string) ?? null }
            const { rows, explain } = await find(database.knex, things, asked, () => {})
            assert.deepEqual(idsOf(rows), idsOf(expected), `${JSON.stringify(asked)}\n${JSON.stringify(explain)}`)
          }
        },
      ),
      { numRuns: RUNS },
    )
  })

  test('count what the matcher matches, by any fields', async () => {
    const query = fc.record({ selector, by: sort })
    await fc.assert(
      fc.asyncProperty(
        world,
        fc.array(query, { minLength: QUERIES_A_WORLD, maxLength: QUERIES_A_WORLD }),
        async (made, queries) => {
          await insertWorld(database, made)
          for (const { selector: wanted, by: keys } of queries) {
            const by = [...new Set(keys.map(({ path }) => path))]
            const matching = documentsOf(made).filter(document => matches(wanted, document))
            const groups = Map.groupBy(matching, document => JSON.stringify(by.map(path => valueAt(document, path))))
            const expected = [...groups].map(([values, { length }]) => ({ values: JSON.parse(values), count: length }))
            if (by.length === 0 && expected.length === 0) expected.push({ values: [], count: 0 })
            expected.sort((a, b) => b.count - a.count || compare(a.values, b.values))
            const counted = await count(database.knex, things, { selector: wanted, by }, () => {})
            const asked = JSON.stringify({ wanted, by })
            assert.deepEqual(
              counted.map(({ key, count }) => ({ values: by.map(path => key[path]), count })),
              expected,
              asked,
            )
          }
        },
      ),
      { numRuns: RUNS },
    )
  })

  test('never look at makers, or at their things, that the caller may not see', async () => {
    await fc.assert(
      fc.asyncProperty(
        world,
        fc.array(fc.tuple(selector, sort), { minLength: QUERIES_A_WORLD, maxLength: QUERIES_A_WORLD }),
        async (made, queries) => {
          await insertWorld(database, made)
          const documents = documentsOf(
            made,
            maker => maker.name < 'a',
            made => made.count > 0,
          )
          const related = (resource: unknown) =>
            resource === makers ? visibleMakers : resource === things ? visibleThings : undefined
          for (const [wanted, keys] of queries) {
            const expected = documents.filter(document => matches(wanted, document)).sort(inOrder(keys))
            const asked = { selector: wanted, sort: written(keys) }
            const { rows, explain } = await find(database.knex, things, asked, () => {}, { related })
            assert.deepEqual(idsOf(rows), idsOf(expected), `${JSON.stringify(asked)}\n${JSON.stringify(explain)}`)
          }
        },
      ),
      { numRuns: Math.ceil(RUNS / 2) },
    )
  })

  test('find for each parent what they find for it alone', async () => {
    const query = fc.record({
      selector,
      sort,
      limit: fc.option(fc.nat({ max: 3 })),
      skip: fc.option(fc.nat({ max: 2 })),
      from: fc.option(fc.nat({ max: 50 })),
      many: fc.boolean(),
    })
    // Where there are hundreds of parents another statement is made.
    const others = Array.from({ length: 250 }, () => randomUUID())
    await fc.assert(
      fc.asyncProperty(
        world,
        fc.array(query, { minLength: QUERIES_A_WORLD, maxLength: QUERIES_A_WORLD }),
        async (made, queries) => {
          await insertWorld(database, made)
          const documents = documentsOf(made)
          const makerIds = made.makers.map(maker => maker.id)
          for (const { selector: wanted, sort: keys, limit, skip, from, many } of queries) {
            const ids = many ? [...makerIds, ...others] : makerIds
            const last = from === null ? undefined : documents[from % documents.length]
            const asked = { selector: wanted, sort: written(keys), limit, skip, after: (last?.id as string) ?? null }
            const parents = { column: 'maker_id', ids }
            const { rows, explain } = await findByParents(database.knex, things, asked, () => {}, parents)
            for (const id of ids) {
              const expected = documents
                .filter(document => document.makerId === id && matches(wanted, document))
                .sort(inOrder(keys))
                .filter(document => last === undefined || inOrder(keys)(document, last) > 0)
                .slice(skip ?? 0, limit === null ? undefined : (skip ?? 0) + limit)
              assert.deepEqual(
                idsOf(rows.get(id) ?? []),
                idsOf(expected),
                `${JSON.stringify(asked)}\n${JSON.stringify(explain)}`,
              )
            }
          }
        },
      ),
      { numRuns: Math.ceil(RUNS / 2) },
    )
  })
})

const visibleMakers = (builder: Knex.QueryBuilder) => {
  builder.where('makers.name', '<', 'a')
}

const visibleThings = (builder: Knex.QueryBuilder) => {
  builder.where('things.count_number', '>', 0)
}
