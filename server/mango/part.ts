import { all, either, type Fragment, sql } from '../database/fragment.ts'

/**
 * SQL that is true wherever its node is, and where `exact` nowhere else. It may be NULL where the node is false.
 */
export type Part = { sql: Fragment | boolean; exact: boolean }

export const exactly = (value: Fragment | boolean): Part => ({ sql: value, exact: true })
export const atMost = (value: Fragment | boolean): Part => ({ sql: value, exact: false })
export const UNKNOWN: Part = atMost(true)

export const conjunction = (parts: Part[]): Part => {
  if (parts.some(part => part.sql === false)) return exactly(false)
  const said = parts.map(part => part.sql).filter(value => typeof value !== 'boolean')
  return { sql: said.length === 0 ? true : all(said), exact: parts.every(part => part.exact) }
}

export const disjunction = (parts: Part[]): Part => {
  if (parts.some(part => part.sql === true && part.exact)) return exactly(true)
  if (parts.some(part => part.sql === true)) return UNKNOWN
  const said = parts.map(part => part.sql).filter(value => typeof value !== 'boolean')
  return { sql: said.length === 0 ? false : either(said), exact: parts.every(part => part.exact) }
}

export const opposite = ({ sql: value, exact }: Part): Part => {
  if (!exact) return UNKNOWN
  return exactly(typeof value === 'boolean' ? !value : sql('(#) IS NOT TRUE', value))
}

export const negatedIf = (negated: boolean, part: Part): Part => {
  if (!negated) return part
  if (!part.exact) return UNKNOWN
  return exactly(typeof part.sql === 'boolean' ? !part.sql : sql('NOT #', part.sql))
}

/** Of something that is not null a comparison is never NULL, so a plain NOT will do, and can use an index. */
export const oppositePresent = (part: Part): Part => {
  if (!part.exact) return UNKNOWN
  return exactly(typeof part.sql === 'boolean' ? !part.sql : sql('NOT (#)', part.sql))
}

/** One part for what is there and one answer for null. */
export const choose = (whenPresent: Part, whenNull: boolean, isPresent: Fragment, isNull: Fragment): Part => {
  const { sql: present, exact } = whenPresent
  if (present === true) return { sql: whenNull ? true : isPresent, exact }
  if (present === false) return { sql: whenNull ? isNull : false, exact }
  return { sql: whenNull ? either([present, isNull]) : present, exact }
}
