import type { MangoQuery } from './mango-query.ts'

type Sort = NonNullable<MangoQuery['sort']>

/** Takes any path, and is selected as a whole. */
const JSON_FIELD = 'payload'

const alias = (index: number): string => `sortedBy${index}`
const ALIAS = /^sortedBy\d+$/

/** GraphQL selection of what rows are sorted by, under names of its own: a walk goes on from there. */
export const selectPlace = (sort: Sort): string =>
  isById(sort) ? '' : sort.map((key, index) => `${alias(index)}: ${select(pathOf(key))}`).join(' ')

/** Where a walk goes on after a row that was selected so, whatever becomes of the row. */
export const placeOf = (row: { id: string }, sort: Sort): Pick<MangoQuery, 'after' | 'afterValues'> => {
  const after = row.id
  if (isById(sort)) return { after }
  const values = sort.map((key, index) => {
    const [, ...below] = pathOf(key)
    return valueAt((row as Record<string, unknown>)[alias(index)], below)
  })
  return { after, afterValues: values }
}

/** The row as it was asked for. */
export const withoutPlace = <Row extends object>(row: Row): Row =>
  Object.fromEntries(Object.entries(row).filter(([name]) => !ALIAS.test(name))) as Row

/** The id says all by itself. */
const isById = (sort: Sort): boolean => sort.length === 0 || pathOf(sort[0]!).join('.') === 'id'

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
