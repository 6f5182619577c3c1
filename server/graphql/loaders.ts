import DataLoader from 'dataloader'
import type { FieldNode, GraphQLResolveInfo } from 'graphql'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'
import type { AccessToken } from '../domain/permissions.ts'
import { visibleTo } from '../domain/visibility.ts'
import { type Row, valuesOf } from '../mango/documents.ts'
import { findByIds, findByParents } from '../mango/find.ts'
import type { MangoQuery } from '../mango/query.ts'
import type { Field, Resource } from '../mango/resource.ts'
import type { Json } from '../mango/selector.ts'
import { sourceOf } from '../mango/source.ts'
import type { Budget } from './budget.ts'

export type Loaders = ReturnType<typeof createLoaders>

const maxBatchSize = STATEMENT_LIMITS.keys

type Load<Value> = DataLoader.BatchLoadFn<string, Value>

/** Loads what rows refer to, one statement a level however many rows there are. */
export const createLoaders = ({ knex }: Database, clock: Clock, token: AccessToken, budget: Budget) => {
  const visible = visibleTo(token)
  const options = () => ({ related: visible, now: clock.now(), meter: budget })

  // By the field in the document: one field has the same arguments wherever it is resolved, and they can be too large
  // to compare.
  const lists = new Map<FieldNode, DataLoader<string, Row[]>>()

  return {
    /** Rows that whoever sees the row which refers to them sees too. */
    row: eachOnce(
      (resource: Resource): Load<Row> =>
        async ids => {
          const rows = await findByIds(knex, resource, ids, () => {}, budget)
          return ids.map(id => rows.get(id) ?? new Error(`${resource.table} has no row ${id}`))
        },
    ),

    /** Rows that may be out of the caller's sight, and then are null. */
    seenRow: eachOnce(
      (resource: Resource): Load<Row | null> =>
        async ids => {
          const rows = await findByIds(knex, resource, ids, visible(resource), budget)
          return ids.map(id => rows.get(id) ?? null)
        },
    ),

    /** Fields that are read from other tables than their row's. */
    value: eachOnce(
      (field: Field): Load<Json> =>
        async ids => {
          const rows = ids.map(id => ({ id }))
          const read = await valuesOf(sourceOf(knex, options()), field, rows)
          const values = rows.map(read)
          if (field.kind === 'list') for (const list of values) budget.load(list as string[])
          return values
        },
    ),

    /** Lists that a field of a document asks for, each by the id of its parent. */
    list(info: GraphQLResolveInfo, load: Load<Row[]>): DataLoader<string, Row[]> {
      const field = info.fieldNodes[0]!
      const loader = lists.get(field) ?? new DataLoader(load, { maxBatchSize })
      lists.set(field, loader)
      return loader
    },

    /** The visible rows of a resource that name each parent in a column. */
    children:
      (
        resource: Resource,
        query: MangoQuery | null | undefined,
        parents: { column: string; orderBy?: string },
      ): Load<Row[]> =>
      async ids => {
        const of = { ...parents, ids }
        const { rows } = await findByParents(knex, resource, query, visible(resource), of, options())
        return ids.map(id => rows.get(id) ?? [])
      },
  }
}

/** A loader for each of what is asked for, made when it is first asked for. */
const eachOnce = <Key, Value>(load: (key: Key) => Load<Value>): ((key: Key) => DataLoader<string, Value>) => {
  const made = new Map<Key, DataLoader<string, Value>>()
  return key => {
    const known = made.get(key)
    if (known) return known
    const loader = new DataLoader(load(key), { maxBatchSize })
    made.set(key, loader)
    return loader
  }
}
