import { all, either, type Fragment, sql } from '../database/fragment.ts'

/**
 * The SQL condition of a node: true wherever the node is true, and if `exact` nowhere else. It may be NULL where the
 * node is false.
 */
export type Predicate = { sql: Fragment | boolean; exact: boolean }

export const exactly = (value: Fragment | boolean): Predicate => ({ sql: value, exact: true })
export const atMost = (value: Fragment | boolean): Predicate => ({ sql: value, exact: false })
export const UNKNOWN: Predicate = atMost(true)

export const conjunction = (predicates: Predicate[]): Predicate => {
  if (predicates.some(predicate => predicate.sql === false)) return exactly(false)
  const said = predicates.map(predicate => predicate.sql).filter(value => typeof value !== 'boolean')
  return { sql: said.length === 0 ? true : all(said), exact: predicates.every(predicate => predicate.exact) }
}

export const disjunction = (predicates: Predicate[]): Predicate => {
  if (predicates.some(predicate => predicate.sql === true && predicate.exact)) return exactly(true)
  if (predicates.some(predicate => predicate.sql === true)) return UNKNOWN
  const said = predicates.map(predicate => predicate.sql).filter(value => typeof value !== 'boolean')
  return { sql: said.length === 0 ? false : either(said), exact: predicates.every(predicate => predicate.exact) }
}

export const opposite = ({ sql: value, exact }: Predicate): Predicate => {
  if (!exact) return UNKNOWN
  return exactly(typeof value === 'boolean' ? !value : sql('(#) IS NOT TRUE', value))
}

export const negatedIf = (negated: boolean, predicate: Predicate): Predicate => {
  if (!negated) return predicate
  if (!predicate.exact) return UNKNOWN
  return exactly(typeof predicate.sql === 'boolean' ? !predicate.sql : sql('NOT #', predicate.sql))
}

/** A comparison of a non-null value is never NULL, so a plain NOT suffices and can use an index. */
export const oppositePresent = (predicate: Predicate): Predicate => {
  if (!predicate.exact) return UNKNOWN
  return exactly(typeof predicate.sql === 'boolean' ? !predicate.sql : sql('NOT (#)', predicate.sql))
}

/** Combines a predicate for existing values with the answer for null. */
export const choose = (whenPresent: Predicate, whenNull: boolean, isPresent: Fragment, isNull: Fragment): Predicate => {
  const { sql: present, exact } = whenPresent
  if (present === true) return { sql: whenNull ? true : isPresent, exact }
  if (present === false) return { sql: whenNull ? isNull : false, exact }
  return { sql: whenNull ? either([present, isNull]) : present, exact }
}
