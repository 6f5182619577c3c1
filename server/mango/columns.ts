import { toIso } from '../../shared/time.ts'
import { all, type Fragment, sql } from '../database/fragment.ts'
import { compareText, satisfies } from './matcher.ts'
import type { ScalarType } from './resource.ts'
import type { Comparison, Json } from './selector.ts'

export const isText = (type: ScalarType): boolean => type === 'uuid' || type === 'string' || type === 'date'

/** A sample value of a column's type, if only the type matters. */
export const sampleOf = (type: ScalarType): Json => (type === 'integer' ? 0 : type === 'boolean' ? false : '')

export type Comparable = { column: string; type: ScalarType; text: (value: string) => Fragment }

const signs: Record<Comparison, string> = { $eq: '=', $ne: '<>', $lt: '<', $lte: '<=', $gt: '>', $gte: '>=' }

export const comparison = (column: Comparable, operator: Comparison, value: Json): Fragment | boolean => {
  const bound = boundOf(column, operator, value)
  if (typeof bound === 'boolean') return bound
  return sql(`${column.column} ${signs[operator]} #`, bound)
}

/** The value to compare a column with, or the answer if all its values are on one side. */
const boundOf = ({ type, text }: Comparable, operator: Comparison, value: Json): Fragment | boolean => {
  const sample = sampleOf(type)
  if (typeof value !== typeof sample || value === null) return satisfies({ operator, value }, sample)
  if (typeof value === 'string') return type === 'time' ? { sql: '?', bindings: [Date.parse(value)] } : text(value)
  if (typeof value === 'boolean') return { sql: '?', bindings: [value ? 1 : 0] }
  if (Math.abs(value as number) > Number.MAX_SAFE_INTEGER) return satisfies({ operator, value }, sample)
  const whole = operator === '$lt' || operator === '$gte' ? Math.ceil(value as number) : Math.floor(value as number)
  if (whole !== value && (operator === '$eq' || operator === '$ne')) return operator === '$ne'
  return { sql: '?', bindings: [whole] }
}

export const among = (column: Comparable, values: Json[]): Fragment | false => {
  const bounds = values.map(value => boundOf(column, '$eq', value)).filter(bound => typeof bound !== 'boolean')
  if (bounds.length === 0) return false
  return sql(`${column.column} IN (${bounds.map(() => '#').join(', ')})`, ...bounds)
}

/** A prefix as a range, which is equal on all engines, needs no escaping and uses an index. */
export const beginsWith = ({ column, text }: Comparable, prefix: string): Fragment | boolean => {
  if (prefix === '') return true
  const from = sql(`${column} >= #`, text(prefix))
  const end = endOfPrefix(prefix)
  return end === undefined ? from : all([from, sql(`${column} < #`, text(end))])
}

/** The range of times whose text begins with a prefix. */
export const timeBeginsWith = (column: string, prefix: string): Fragment | boolean => {
  if (prefix === '') return true
  const from = firstFrom(prefix)
  const end = endOfPrefix(prefix)
  const until = end === undefined ? AFTER_ALL : firstFrom(end)
  if (from === until) return false
  return { sql: `(${column} >= ? AND ${column} < ?)`, bindings: [from, until] }
}

/** The times with a year of four digits, whose text sorts in the order of time. */
const [FIRST_TIME, AFTER_ALL] = [Date.parse('0000-01-01'), Date.parse('9999-12-31') + 24 * 3600 * 1000]

/** The first time whose text is `text` or later. */
const firstFrom = (text: string): number => {
  let [low, high] = [FIRST_TIME, AFTER_ALL]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    if (compareText(toIso(middle), text) < 0) low = middle + 1
    else high = middle
  }
  return low
}

/** The first text after all those that begin with `prefix`. */
export const endOfPrefix = (prefix: string): string | undefined => {
  const characters = [...prefix]
  while (characters.length > 0) {
    const last = characters.pop()!.codePointAt(0)!
    if (last === 0x10ffff) continue
    return characters.join('') + String.fromCodePoint(last === 0xd7ff ? 0xe000 : last + 1)
  }
  return undefined
}
