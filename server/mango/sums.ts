import type { Resource, Sums, SumsAsked } from './resource.ts'
import type { FieldNode, Node } from './selector.ts'
import type { SortKey } from './sort.ts'

// Which counts can be answered from those that are kept: of rows that a span of time and equal values select, by whole
// spans and by those values.

/** Fewer than the values that a statement may bind. */
const MOST_VALUES = 1_000

/** A range of a time: from the first to before the second, epoch milliseconds. */
export type Range = [fromMs: number, toMs: number]

/** What to ask of the kept counts of a resource; undefined if they cannot answer. */
export const askOfSums = (
  node: Node,
  keys: readonly SortKey[],
  { fields }: Resource,
  sums: Sums,
): SumsAsked | undefined => {
  const conditions = conditionsOf(node)
  const by = keys.map(({ path, column, bucket }) => {
    if (path.length > 1 || !column?.own) return undefined
    if (bucket) return column.property === sums.time && bucket.spanMs % sums.spanMs === 0 ? bucket.spanMs : undefined
    return sums.columns.includes(column.property) ? column.property : undefined
  })
  if (conditions === undefined || by.includes(undefined)) return undefined
  let within: Range = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY]
  const where = new Map<string, readonly string[]>()
  for (const { path, negated, condition } of conditions) {
    const field = path.length === 1 ? fields[path[0]!] : undefined
    if (field?.kind !== 'column' || negated) return undefined
    const range = field.column === sums.time ? rangeOf(condition) : undefined
    const values = sums.columns.includes(field.column) ? valuesOf(condition) : undefined
    if (range) within = [Math.max(within[0], range[0]), Math.min(within[1], range[1])]
    else if (values && !where.has(field.column)) where.set(field.column, values)
    else return undefined
  }
  return { within, where, by: by as (string | number)[] }
}

/** The conditions that must all hold; undefined if it is not that simple. */
const conditionsOf = (node: Node): FieldNode[] | undefined => {
  if (node.kind === 'field') return [node]
  if (node.kind !== 'and') return undefined
  const all = node.nodes.map(conditionsOf)
  return all.some(each => each === undefined) ? undefined : all.flatMap(each => each!)
}

const rangeOf = (condition: FieldNode['condition']): Range | undefined => {
  if (!('value' in condition) || typeof condition.value !== 'string') return undefined
  const ms = Date.parse(condition.value)
  switch (condition.operator) {
    case '$gte':
      return [ms, Number.POSITIVE_INFINITY]
    case '$gt':
      return [ms + 1, Number.POSITIVE_INFINITY]
    case '$lt':
      return [Number.NEGATIVE_INFINITY, ms]
    case '$lte':
      return [Number.NEGATIVE_INFINITY, ms + 1]
    default:
      return undefined
  }
}

const valuesOf = (condition: FieldNode['condition']): string[] | undefined => {
  const values =
    condition.operator === '$eq' ? [condition.value] : condition.operator === '$in' ? condition.values : undefined
  if (values === undefined || values.length === 0 || values.length > MOST_VALUES) return undefined
  return values.every(value => typeof value === 'string' && value !== '') ? [...new Set(values as string[])] : undefined
}

/** What is left of a range without the spans that begin at `known`, which are in order. */
export const restOf = ([fromMs, toMs]: Range, known: readonly number[], spanMs: number): Range[] => {
  const rest: Range[] = []
  let position = fromMs
  for (const start of known) {
    if (start > position) rest.push([position, start])
    position = start + spanMs
  }
  return position < toMs ? [...rest, [position, toMs]] : rest
}
