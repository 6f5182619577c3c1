import type { MangoQuery } from './mango-query.ts'

type Sort = NonNullable<MangoQuery['sort']>

/** A field of JSON, which takes any path and is selected as a whole. */
const JSON_FIELD = 'payload'

const alias = (index: number): string => `sortedBy${index}`
const ALIAS = /^sortedBy\d+$/

/** The GraphQL selection of the sort fields, under aliases, to continue from. */
export const selectPlace = (sort: Sort): string =>
  isSortedById(sort) ? '' : sort.map((key, index) => `${alias(index)}: ${select(pathOf(key))}`).join(' ')

/** The position after a row selected this way, which stays valid even if the row changes. */
export const placeOf = (row: { id: string }, sort: Sort): Pick<MangoQuery, 'after' | 'afterValues'> => {
  const after = row.id
  if (isSortedById(sort)) return { after }
  const values = sort.map((key, index) => {
    const [, ...below] = pathOf(key)
    return valueAt((row as Record<string, unknown>)[alias(index)], below)
  })
  return { after, afterValues: values }
}

/** The row without the aliases. */
export const withoutPlace = <Row extends object>(row: Row): Row =>
  Object.fromEntries(Object.entries(row).filter(([name]) => !ALIAS.test(name))) as Row

/** Whether the id alone is sufficient as a place. */
export const isSortedById = (sort: Sort): boolean => sort.length === 0 || pathOf(sort[0]!).join('.') === 'id'

const pathOf = (key: Sort[number]): string[] => Object.keys(key)[0]!.split('.')

const select = ([name, ...below]: string[]): string => {
  const next = below.filter(part => !isIndex(part))
  return next.length === 0 || name === JSON_FIELD ? name! : `${name} { ${select(next)} }`
}

const valueAt = (value: unknown, path: string[]): unknown => {
  let found = value
  for (const name of path) {
    if (typeof found !== 'object' || found === null || !Object.hasOwn(found, name)) return null
    found = (found as Record<string, unknown>)[name]
  }
  return found ?? null
}

const isIndex = (name: string): boolean => /^\d+$/.test(name)
