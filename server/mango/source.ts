import type { Sql } from '../database/connect.ts'
import type { Fragment } from '../database/fragment.ts'
import { unmetered } from './meter.ts'
import type { Options } from './query.ts'
import type { Resource, Source, VisibleRows } from './resource.ts'

/** The source of related rows. */
export const sourceOf = (db: Sql, { related, now = Date.now(), meter = unmetered }: Options): Source => ({
  connection: db,
  visible: visibleRowsBy(db, related),
  seen: (resource, ofSeen) => related?.(resource, ofSeen) ?? (() => {}),
  now,
  meter,
})

/** The visibility of other resources, as a condition on their ids. */
const visibleRowsBy = (db: Sql, related: Options['related']): VisibleRows => {
  const known = new Map<Resource, Fragment | undefined>()
  const visibleIds = (resource: Resource): Fragment | undefined => {
    const visible = related?.(resource)
    if (!visible) return undefined
    const id = `${resource.table}.id`
    const everything = db(resource.table).select(id).toSQL().sql
    const { sql, bindings } = db(resource.table).select(id).modify(visible).toSQL()
    return sql === everything ? undefined : { sql, bindings: bindings as Fragment['bindings'] }
  }
  return (resource, alias, column = 'id') => {
    if (!known.has(resource)) known.set(resource, visibleIds(resource))
    const ids = known.get(resource)
    return ids && { sql: `${alias}.${column} IN (${ids.sql})`, bindings: ids.bindings }
  }
}
