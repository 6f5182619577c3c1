import { type Condition, isObject, type Json, type Node, parseSelector, typeNames, typeOf } from './selector.ts'

/** Whether a document matches a selector by CouchDB's rules, strings compared by code point. Throws `MangoError`. */
export const matches = (selector: unknown, document: Json): boolean => evaluate(parseSelector(selector), document)

/** Whether a value matches a parsed selector. */
export const evaluate = (node: Node, value: Json): boolean => {
  switch (node.kind) {
    case 'and':
      return node.nodes.every(inner => evaluate(inner, value))
    case 'or':
      // An empty $or is true, like an empty $and, as in CouchDB's matcher; each is the opposite of the other.
      return node.nodes.length === 0 || node.nodes.some(inner => evaluate(inner, value))
    case 'not':
      return !evaluate(node.node, value)
    case 'constant':
      return node.value
    case 'field': {
      const found = read(value, node.path)
      if (found === missing) return node.condition.operator === '$exists' && !node.condition.value && !node.negated
      if (found === unreachable) return false
      return satisfies(node.condition, found) !== node.negated
    }
  }
}

/** Whether an existing value satisfies a condition. */
export const satisfies = (condition: Condition, value: Json): boolean => {
  switch (condition.operator) {
    case '$eq':
      return compare(value, condition.value) === 0
    case '$ne':
      return compare(value, condition.value) !== 0
    case '$lt':
      return compare(value, condition.value) < 0
    case '$lte':
      return compare(value, condition.value) <= 0
    case '$gt':
      return compare(value, condition.value) > 0
    case '$gte':
      return compare(value, condition.value) >= 0
    case '$in':
      return isAmong(value, condition.values)
    case '$nin':
      return !isAmong(value, condition.values)
    case '$all':
      return hasAll(value, condition.values)
    case '$exists':
      return condition.value
    case '$type':
      return typeOf(value) === condition.value
    case '$size':
      return Array.isArray(value) && value.length === condition.value
    case '$mod':
      return Number.isInteger(value) && (value as number) % condition.divisor === condition.remainder
    case '$beginsWith':
      return typeof value === 'string' && value.startsWith(condition.value)
    case '$regex':
      return typeof value === 'string' && condition.pattern.test(value)
    case '$elemMatch':
      return Array.isArray(value) && value.some(item => evaluate(condition.node, item))
    case '$allMatch':
      return Array.isArray(value) && value.length > 0 && value.every(item => evaluate(condition.node, item))
    case '$keyMapMatch':
      return isObject(value) && Object.keys(value).some(key => evaluate(condition.node, key))
  }
}

/** A list is among values if one of its elements is; the list as a whole never is. */
const isAmong = (value: Json, values: Json[]): boolean =>
  (Array.isArray(value) ? value : [value]).some(item => values.some(wanted => compare(item, wanted) === 0))

/** If the single value is a list itself, the whole list matches too. */
const hasAll = (value: Json, values: Json[]): boolean => {
  if (!Array.isArray(value) || values.length === 0) return false
  if (values.length === 1 && Array.isArray(values[0]) && compare(value, values[0]) === 0) return true
  return values.every(wanted => value.some(item => compare(item, wanted) === 0))
}

/** The object at the path has no such key. */
export const missing = Symbol('missing')
/** The path goes through a value without such a place: `a.b` of `{a: 1}`. Not even `$exists: false` is true of it. */
export const unreachable = Symbol('unreachable')

/** The value at a path; a number in a path is an index if the value is a list. */
export const read = (value: Json, path: readonly string[]): Json | typeof missing | typeof unreachable => {
  let current = value
  for (const name of path) {
    if (Array.isArray(current)) {
      const item = isIndex(name) ? current[Number(name)] : undefined
      if (item === undefined) return unreachable
      current = item
    } else if (isObject(current)) {
      if (!Object.hasOwn(current, name)) return missing
      current = current[name] as Json
    } else {
      return unreachable
    }
  }
  return current
}

export const isIndex = (name: string): boolean => /^[+-]?\d+$/.test(name)

/**
 * Compares two values: less than, equal to or greater than 0 as `a` sorts before, with or after `b`. The order is null,
 * false, true, numbers, strings, lists, objects. Lists and objects compare member by member, objects in the order of
 * their members.
 */
export const compare = (a: Json, b: Json): number => {
  if (a === b) return 0
  if (typeof a === 'string' && typeof b === 'string') return compareText(a, b)
  if (typeof a === 'number' && typeof b === 'number') return a - b
  const ranks = typeNames.indexOf(typeOf(a)) - typeNames.indexOf(typeOf(b))
  if (ranks !== 0) return ranks
  if (typeof a === 'boolean') return a ? 1 : -1
  if (Array.isArray(a)) return compareLists(a, b as Json[])
  return compareLists(Object.entries(a as object).flat(), Object.entries(b as object).flat())
}

const compareLists = (a: Json[], b: Json[]): number => {
  for (let index = 0; index < a.length && index < b.length; index++) {
    const difference = compare(a[index]!, b[index]!)
    if (difference !== 0) return difference
  }
  return a.length - b.length
}

/** By code point: UTF-16 would put the characters beyond U+FFFF, written as surrogates, before U+E000. */
export const compareText = (a: string, b: string): number => {
  const length = Math.min(a.length, b.length)
  for (let index = 0; index < length; index++) {
    const x = a.charCodeAt(index)
    const y = b.charCodeAt(index)
    if (x !== y) return inCodePointOrder(x) - inCodePointOrder(y)
  }
  return a.length - b.length
}

const inCodePointOrder = (unit: number): number => (unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x2000 : unit - 0x800)
