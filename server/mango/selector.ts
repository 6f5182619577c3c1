import { didYouMean } from '../../shared/did-you-mean.ts'
import { badQuery, quoted } from './error.ts'
import { type Meter, unmetered } from './meter.ts'
import { compilePattern, type Pattern } from './pattern.ts'

/**
 * A selector as CouchDB normalises one: a bare value is `$eq`, several keys are `$and`, nested objects are longer
 * paths, and `$not` and `$nor` are pushed down to the conditions. Inside `$elemMatch`, `$allMatch` and `$keyMapMatch`
 * CouchDB pushes nothing down, and neither does this code: there `not` is the plain opposite, which is true of a
 * missing field too.
 */
export type Node =
  | { kind: 'and' | 'or'; nodes: Node[] }
  | { kind: 'not'; node: Node }
  | { kind: 'constant'; value: boolean }
  | FieldNode

/** `condition` of the value at `path`, or of the value itself if that is empty. A missing field fails it either way. */
export type FieldNode = { kind: 'field'; path: string[]; at: string; negated: boolean; condition: Condition }

export type Condition =
  | { operator: Comparison; value: Json }
  | { operator: '$in' | '$nin' | '$all'; values: Json[] }
  | { operator: '$exists'; value: boolean }
  | { operator: '$type'; value: TypeName }
  | { operator: '$size'; value: number }
  | { operator: '$mod'; divisor: number; remainder: number }
  | { operator: '$beginsWith'; value: string }
  | { operator: '$regex'; pattern: Pattern }
  | { operator: '$elemMatch' | '$allMatch' | '$keyMapMatch'; node: Node }

export type Comparison = '$eq' | '$ne' | '$lt' | '$lte' | '$gt' | '$gte'
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

/** The types, in the order in which their values compare. */
export const typeNames = ['null', 'boolean', 'number', 'string', 'array', 'object'] as const
export type TypeName = (typeof typeNames)[number]

export const operators = [
  ...['$and', '$or', '$not', '$nor', '$eq', '$ne', '$lt', '$lte', '$gt', '$gte', '$in', '$nin', '$exists', '$type'],
  ...['$regex', '$beginsWith', '$mod', '$size', '$all', '$elemMatch', '$allMatch', '$keyMapMatch'],
] as const

/** The most levels of nested objects and lists. */
export const MAX_DEPTH = 32
/** The most conditions of a selector, including `$and`, `$or` and the like. */
export const MAX_NODES = 1_000
/** The most keys and list elements of a selector, including those of `$in`. */
export const MAX_VALUES = 11_000

/** Parses a selector. Undefined and null select everything, like `{}`. Throws `MangoError`. */
export const parseSelector = (selector: unknown, meter = unmetered): Node => {
  if (selector === undefined || selector === null) return everything
  if (!isObject(selector)) {
    throw badQuery('selector', `is ${typeOf(selector)}; a selector is an object, such as {"name": "Acme"}`)
  }
  checkSize(selector, 'selector')
  if (Object.keys(selector).length === 0) return everything
  return new Parser(meter).parse(selector, { path: [], at: 'selector', negated: false, inElement: false })
}

const everything: Node = { kind: 'and', nodes: [] }

type Place = { path: string[]; at: string; negated: boolean; inElement: boolean }

class Parser {
  readonly #meter: Meter
  #nodes = 0

  constructor(meter: Meter) {
    this.#meter = meter
  }

  parse(value: unknown, place: Place): Node {
    this.#nodes += 1
    if (this.#nodes > MAX_NODES)
      throw badQuery('selector', `has more than ${MAX_NODES} conditions; ask in several queries`)
    if (!isObject(value)) return field(place, { operator: '$eq', value: json(value, place.at) })
    const keys = Object.keys(value)
    if (keys.length === 0) return field(place, { operator: '$eq', value: {} })
    checkSpellings(keys, place)
    const nodes = keys.map(key => this.#entry(key, value[key], place))
    return nodes.length === 1 ? nodes[0]! : { kind: place.negated ? 'or' : 'and', nodes }
  }

  #entry(key: string, value: unknown, place: Place): Node {
    const operator = operatorOf(key)
    if (operator === undefined && key.startsWith('$')) {
      throw badQuery(
        at(place, key),
        `is not an operator${didYouMean(key, operators)} Operators: ${operators.join(' ')}`,
      )
    }
    if (operator === undefined) {
      return this.parse(value, {
        ...place,
        path: [...place.path, ...splitPath(key, at(place, key))],
        at: at(place, key),
      })
    }
    const here = { ...place, at: at(place, key) }
    switch (operator) {
      case '$and':
      case '$or':
        return {
          kind: (operator === '$and') === place.negated ? 'or' : 'and',
          nodes: this.#list(value, here),
        }
      case '$nor':
        if (place.inElement) {
          return { kind: 'and', nodes: this.#list(value, here).map(node => ({ kind: 'not', node })) }
        }
        return { kind: place.negated ? 'or' : 'and', nodes: this.#list(value, { ...here, negated: !place.negated }) }
      case '$not':
        if (!isObject(value))
          throw badQuery(here.at, `takes an object, such as {"$not": {"$eq": 1}}, not ${typeOf(value)}`)
        if (place.inElement) return { kind: 'not', node: this.parse(value, here) }
        return this.parse(value, { ...here, negated: !place.negated })
      default:
        return field(here, this.#condition(operator, value, here.at))
    }
  }

  #list(value: unknown, place: Place): Node[] {
    return list(value, place.at).map((item, index) => {
      const here = { ...place, at: `${place.at}[${index}]` }
      if (!isObject(item) && here.path.length === 0 && !here.inElement) {
        throw badQuery(here.at, `is ${typeOf(item)}; each element is a selector, such as {"name": "Acme"}`)
      }
      return this.parse(item, here)
    })
  }

  #condition(operator: Terminal, value: unknown, where: string): Condition {
    switch (operator) {
      case '$in':
      case '$nin':
      case '$all':
        return { operator, values: list(value, where).map((item, index) => json(item, `${where}[${index}]`)) }
      case '$exists':
        if (typeof value !== 'boolean') throw badQuery(where, `takes true or false, not ${typeOf(value)}`)
        return { operator, value }
      case '$type': {
        const found = typeNames.find(name => name === value)
        if (found) return { operator, value: found }
        const said =
          typeof value === 'string'
            ? `${quoted(value)} is not a type${didYouMean(value, typeNames)}`
            : 'takes the name of a type.'
        throw badQuery(where, `${said} Types: ${typeNames.join(', ')}`)
      }
      case '$size':
        if (!Number.isSafeInteger(value) || (value as number) < 0)
          throw badQuery(where, 'takes a whole number, 0 or more')
        return { operator, value: value as number }
      case '$mod': {
        const [divisor, remainder] = Array.isArray(value) && value.length === 2 ? (value as unknown[]) : []
        if (!Number.isSafeInteger(divisor) || !Number.isSafeInteger(remainder) || divisor === 0) {
          throw badQuery(where, 'takes [divisor, remainder]: two whole numbers, with a divisor other than 0')
        }
        return { operator, divisor: divisor as number, remainder: remainder as number }
      }
      case '$beginsWith':
        if (typeof value !== 'string') throw badQuery(where, `takes a string, not ${typeOf(value)}`)
        return { operator, value: value.toWellFormed() }
      case '$regex':
        if (typeof value !== 'string') throw badQuery(where, `takes a pattern in a string, not ${typeOf(value)}`)
        return { operator, pattern: compilePattern(value.toWellFormed(), where, this.#meter) }
      case '$elemMatch':
      case '$allMatch':
      case '$keyMapMatch':
        if (!isObject(value))
          throw badQuery(where, `takes an object, such as {"${operator}": {"$eq": 1}}, not ${typeOf(value)}`)
        return { operator, node: this.parse(value, { path: [], at: where, negated: false, inElement: true }) }
      default:
        return { operator, value: json(value, where) }
    }
  }
}

type Operator = (typeof operators)[number]
type Terminal = Exclude<Operator, '$and' | '$or' | '$not' | '$nor'>

/** The operator that a key spells: `$regex`, or `_regex` for query documents, where no key begins with `$`. */
const operatorOf = (key: string): Operator | undefined => {
  const spelled = key.startsWith('_') ? `$${key.slice(1)}` : key
  return operators.find(operator => operator === spelled)
}

const checkSpellings = (keys: string[], place: Place): void => {
  for (const key of keys) {
    if (key.startsWith('$') && keys.includes(`_${key.slice(1)}`)) {
      throw badQuery(place.at, `has both ${key} and _${key.slice(1)}, two spellings of the same operator; keep one`)
    }
  }
}

/** Each operator with its opposite for an existing field. */
const opposites = {
  ...{ $eq: '$ne', $ne: '$eq', $lt: '$gte', $gte: '$lt', $lte: '$gt', $gt: '$lte' },
  ...{ $in: '$nin', $nin: '$in' },
} as const

const field = ({ path, at: where, negated, inElement }: Place, condition: Condition): Node => {
  const isEmptyObject = condition.operator === '$eq' && isObject(condition.value)
  if (path.length === 0 && !inElement && !isEmptyObject) {
    throw badQuery(where, 'needs a field to apply to, as in {"name": {"$eq": "Acme"}}')
  }
  if (!negated) return { kind: 'field', path, at: where, negated, condition }
  return { kind: 'field', path, at: where, ...opposite(condition) }
}

const opposite = (condition: Condition): { negated: boolean; condition: Condition } => {
  if (condition.operator === '$exists') return { negated: false, condition: { ...condition, value: !condition.value } }
  if (!(condition.operator in opposites)) return { negated: true, condition }
  const operator = opposites[condition.operator as keyof typeof opposites]
  return { negated: false, condition: { ...condition, operator } as Condition }
}

/** The names in a dotted path; `\.` is a dot inside a name. */
export const splitPath = (path: string, where: string): string[] => {
  const names = path
    .toWellFormed()
    .split(/(?<!\\)\./)
    .map(name => name.replaceAll('\\', ''))
  if (names.includes(''))
    throw badQuery(where, `${quoted(path)} has an empty name; write paths as in organisation.name`)
  return names
}

const at = (place: Place, key: string): string => `${place.at}.${key.length > 80 ? `${key.slice(0, 79)}…` : key}`

const list = (value: unknown, where: string): unknown[] => {
  if (!Array.isArray(value)) throw badQuery(where, `takes a list, not ${typeOf(value)}`)
  return value
}

/** Throws `MangoError` for a value that is too deep or too large to process cheaply. */
export const checkSize = (whole: unknown, name: string): void => {
  let values = 0
  const walk = (value: unknown, depth: number): void => {
    if (typeof value !== 'object' || value === null) return
    if (depth > MAX_DEPTH) throw badQuery(name, `is nested deeper than ${MAX_DEPTH} levels`)
    const inner = Object.values(value)
    values += inner.length
    if (values > MAX_VALUES) throw badQuery(name, `has more than ${MAX_VALUES} values; ask in several queries`)
    for (const item of inner) walk(item, depth + 1)
  }
  walk(whole, 1)
}

/** A copy in JSON and well-formed Unicode, the only values that a database can hold. */
export const json = (value: unknown, where: string): Json => {
  if (typeof value === 'string') return value.toWellFormed()
  if (value === null || typeof value === 'boolean') return value
  if (typeof value === 'number' && Number.isFinite(value)) return value
  if (Array.isArray(value)) return value.map((item, index) => json(item, `${where}[${index}]`))
  if (isObject(value)) {
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key.toWellFormed(), json(item, `${where}.${key}`)]),
    )
  }
  throw badQuery(where, 'is not JSON')
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** The name of a JSON value's type. */
export const typeOf = (value: unknown): TypeName => {
  if (value === null || value === undefined) return 'null'
  if (Array.isArray(value)) return 'array'
  return typeof value as TypeName
}
