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
type Loader<Value> = {
  load(id: string): Value | Promise<Value>
  /** Loads the values of many ids, so that `load` has them at once. */
  loadAhead(ids: readonly string[]): Promise<void>
  /** Gives the value of an id that need not be loaded. */
  prime(id: string, value: Value): void
}

/** Loads related rows, with one statement for each level, however many rows there are. */
export const createLoaders = ({ knex }: Database, clock: Clock, token: AccessToken, budget: Budget) => {
  const visible = visibleTo(token)
  const options = () => ({ related: visible, now: clock.now(), meter: budget })
  const loaderOf = <Value>(load: Load<Value>) => createLoader(load, dispatch => budget.loadTogether(dispatch))
  /** A map of loaders, each made at its first use. */
  const eachOnce = <Key, Value>(load: (key: Key) => Load<Value>): ((key: Key) => Loader<Value>) => {
    const made = new Map<Key, Loader<Value>>()
    return key => {
      const loader = made.get(key) ?? loaderOf(load(key))
      made.set(key, loader)
      return loader
    }
  }

  // Keyed by the field in the document, which has the same arguments wherever it is resolved; the arguments can be too
  // large to compare.
  const lists = new Map<FieldNode, Loader<Row[]>>()

  return {
    /** Related rows that every caller sees who sees the row that refers to them. */
    row: eachOnce(
      (resource: Resource): Load<Row> =>
        async ids => {
          const rows = await findByIds(knex, resource, ids, () => {}, budget)
          return ids.map(id => rows.get(id) ?? new Error(`${resource.table} has no row ${id}`))
        },
    ),

    /** Related rows that may be out of the caller's sight, and are null then. */
    seenRow: eachOnce(
      (resource: Resource): Load<Row | null> =>
        async ids => {
          const rows = await findByIds(knex, resource, ids, visible(resource), budget)
          return ids.map(id => rows.get(id) ?? null)
        },
    ),

    /** Fields computed from other tables. */
    value: eachOnce(
      (field: Field): Load<Json> =>
        async ids => {
          const rows = ids.map(id => ({ id }))
          const read = await valuesOf(sourceOf(knex, options()), field, rows)
          const values = rows.map(read)
          if (field.kind === 'list') for (const list of values) budget.loadEntries(list as string[])
          return values
        },
    ),

    /** Lists of a field in a document, by the id of the parent. */
    list(info: GraphQLResolveInfo, load: Load<Row[]>): Loader<Row[]> {
      const field = info.fieldNodes[0]!
      const loader = lists.get(field) ?? loaderOf(load)
      lists.set(field, loader)
      return loader
    },

    /** For each parent, the visible rows of a resource whose column has the parent's id. */
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

/**
 * Answers a value that it has loaded before at once: a promise, and what waits for it, take several times the memory of
 * the field.
 */
const createLoader = <Value>(loadAll: Load<Value>, batchScheduleFn: (dispatch: () => void) => void): Loader<Value> => {
  const known = new Map<string, Value>()
  const loadBatch: Load<Value> = async ids => {
    const found = await loadAll(ids)
    for (const [index, id] of ids.entries()) {
      const value = found[index]
      if (value !== undefined && !(value instanceof Error)) known.set(id, value)
    }
    return found
  }
  const loader = new DataLoader<string, Value>(loadBatch, { maxBatchSize, batchScheduleFn })
  return {
    load: id => (known.has(id) ? known.get(id)! : loader.load(id)),
    async loadAhead(ids) {
      const unknown = ids.filter(id => !known.has(id))
      for (let from = 0; from < unknown.length; from += maxBatchSize) {
        await loadBatch(unknown.slice(from, from + maxBatchSize))
      }
    },
    prime: (id, value) => void known.set(id, value),
  }
}
