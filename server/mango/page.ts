import { isId } from '../../shared/ids.ts'
import { badQuery, quoted } from './error.ts'
import type { Resource } from './resource.ts'
import { typeOf } from './selector.ts'

/** The most rows without a limit, and the highest limit. */
export const MAX_ROWS = 10_000

/** The requested part of the rows. */
export type Page = {
  limit: number | undefined
  skip: number
  after: string | undefined
  afterValues: unknown[] | undefined
}

/** Reads the page of a query. Throws `MangoError` for an invalid one. */
export const parsePage = (
  query: { limit?: unknown; skip?: unknown; after?: unknown; afterValues?: unknown },
  resource: Resource,
): Page => {
  const after = afterOf(query.after, resource)
  return {
    limit: wholeNumber(query.limit, 'limit', MAX_ROWS),
    skip: wholeNumber(query.skip, 'skip', Number.MAX_SAFE_INTEGER) ?? 0,
    after,
    afterValues: afterValuesOf(query.afterValues, after),
  }
}

const wholeNumber = (value: unknown, name: string, most: number): number | undefined => {
  if (value === undefined || value === null) return undefined
  const range = most === MAX_ROWS ? `from 0 to ${MAX_ROWS}` : 'of 0 or more'
  if (!Number.isSafeInteger(value) || (value as number) < 0 || (value as number) > most) {
    throw badQuery(name, `must be a whole number ${range}, not ${typeof value === 'number' ? value : typeOf(value)}`)
  }
  return value as number
}

const afterOf = (after: unknown, resource: Resource): string | undefined => {
  if (after === undefined || after === null) return undefined
  if (typeof after !== 'string' || !isId(after)) {
    throw badQuery(
      'after',
      `must be the id of the last row seen, a UUID, not ${typeof after === 'string' ? quoted(after) : typeOf(after)}`,
    )
  }
  if (!Object.hasOwn(resource.fields, 'id')) throw badQuery('after', `${resource.name} have no id to page by; use skip`)
  return after.toLowerCase()
}

const afterValuesOf = (values: unknown, after: string | undefined): unknown[] | undefined => {
  if (values === undefined || values === null) return undefined
  if (!Array.isArray(values))
    throw badQuery('afterValues', `must be a list with one value for each field of sort, not ${typeOf(values)}`)
  if (after === undefined) throw badQuery('afterValues', 'needs after, the id of the row with these values')
  return values
}
