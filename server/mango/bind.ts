import { didYouMean } from '../../shared/did-you-mean.ts'
import { parseIso, toIso } from '../../shared/time.ts'
import { badQuery, quoted } from './error.ts'
import { evaluate, isIndex } from './matcher.ts'
import type { Field, Resource, ScalarType } from './resource.ts'
import {
  type Comparison,
  type Condition,
  type FieldNode,
  isObject,
  type Json,
  type Node,
  operators,
  typeOf,
} from './selector.ts'

/**
 * Checks a selector against its resource: every field exists, and times, dates and enum values are valid. Times are
 * normalised to Tidings' format, so that comparing them as text compares instants.
 *
 * Conditions on a whole object or list of objects see only that it is one; its fields are selected one by one. Throws
 * `MangoError`.
 */
export const bind = (node: Node, resource: Resource): Node => bindIn(node, { kind: 'object', resource })

/** What a condition can be about. */
export type Target =
  | { kind: 'scalar'; type: ScalarType; nullable: boolean; values?: readonly string[] }
  | { kind: 'object'; resource: Resource }
  | { kind: 'related'; resource: Resource }
  | { kind: 'scalars'; element: Target }
  | { kind: 'objects'; element: Target }
  | { kind: 'json' }

const bindIn = (node: Node, target: Target): Node => {
  switch (node.kind) {
    case 'and':
    case 'or':
      return { kind: node.kind, nodes: node.nodes.map(inner => bindIn(inner, target)) }
    case 'not':
      return { kind: 'not', node: bindIn(node.node, target) }
    case 'constant':
      return node
    case 'field':
      return bindField(node, targetAt(target, node.path, node.at))
  }
}

/** The target of a path. Throws for an unknown field, with the known ones. */
export const targetAt = (target: Target, path: readonly string[], at: string): Target => {
  const [name, ...rest] = path
  if (name === undefined || target.kind === 'json') return target
  switch (target.kind) {
    case 'object':
    case 'related':
      return targetAt(targetOf(fieldOf(target.resource, name, at)), rest, at)
    case 'scalars':
    case 'objects': {
      if (isIndex(name)) return targetAt(target.element, rest, at)
      const inElement = target.kind === 'objects' ? `${quoted(name)}: …` : '"$eq": …'
      throw badQuery(at, `leads into a list; say which elements, as in {"$elemMatch": {${inElement}}}`)
    }
    case 'scalar':
      throw badQuery(at, `leads into a ${target.type}, which has no fields${didYouMean(name, underscored(name))}`)
  }
}

/** Names that look like operators in the spelling of query documents. */
const underscored = (name: string): string[] =>
  name.startsWith('_') ? operators.map(operator => operator.replace('$', '_')) : []

export const fieldOf = (resource: Resource, name: string, at: string): Field => {
  if (Object.hasOwn(resource.fields, name)) return resource.fields[name]!
  const names = Object.keys(resource.fields)
  const meant = didYouMean(name, [...names, ...underscored(name)])
  throw badQuery(at, `${resource.name} have no field ${quoted(name)}${meant} Fields: ${names.join(', ')}`)
}

const targetOf = (field: Field): Target => {
  switch (field.kind) {
    case 'column':
      return {
        kind: 'scalar',
        type: field.type,
        nullable: field.nullable ?? false,
        ...(field.values && { values: field.values }),
      }
    case 'json':
    case 'part':
      return { kind: 'json' }
    case 'list':
      return {
        kind: 'scalars',
        element: { kind: 'scalar', type: field.type, nullable: false, ...(field.values && { values: field.values }) },
      }
    case 'related':
      return { kind: 'related', resource: field.resource() }
    case 'children':
      return { kind: 'objects', element: { kind: 'object', resource: field.resource() } }
    case 'derived':
      return field.object
        ? { kind: 'object', resource: field.object }
        : { kind: 'scalar', type: field.row ? 'uuid' : 'time', nullable: true }
  }
}

const bindField = (node: FieldNode, target: Target): Node => {
  switch (target.kind) {
    case 'json':
      return node
    case 'scalar':
      return { ...node, condition: bindScalar(node.condition, target, node.at) }
    case 'scalars':
      return { ...node, condition: bindScalars(node.condition, target.element as Scalar, node.at) }
    case 'objects':
      return { ...node, condition: bindObjects(node.condition, target.element, node.at) }
    case 'object':
    case 'related':
      return { ...node, condition: bindObject(node.condition, target.resource, node.at) }
  }
}

type Scalar = Extract<Target, { kind: 'scalar' }>

const bindScalar = (condition: Condition, target: Scalar, at: string): Condition => {
  switch (condition.operator) {
    case '$eq':
    case '$ne':
      return { ...condition, value: checkEnum(timeOrDate(condition.value, target, at), target, at) }
    case '$lt':
    case '$lte':
    case '$gt':
    case '$gte':
      return { ...condition, value: timeOrDate(condition.value, target, at) }
    case '$in':
    case '$nin':
    case '$all':
      return {
        ...condition,
        values: condition.values.map(value => checkEnum(timeOrDate(value, target, at), target, at)),
      }
    default:
      return condition
  }
}

const bindScalars = (condition: Condition, element: Scalar, at: string): Condition => {
  switch (condition.operator) {
    case '$eq':
    case '$ne':
      return {
        ...condition,
        value: Array.isArray(condition.value)
          ? condition.value.map(value => checkEnum(value, element, at))
          : condition.value,
      }
    case '$in':
    case '$nin':
    case '$all':
      return { ...condition, values: condition.values.map(value => checkEnum(value, element, at)) }
    case '$elemMatch':
    case '$allMatch':
      return { ...condition, node: bindIn(condition.node, element) }
    default:
      return condition
  }
}

const bindObjects = (condition: Condition, element: Target, at: string): Condition => {
  switch (condition.operator) {
    case '$elemMatch':
    case '$allMatch':
      return { ...condition, node: bindIn(condition.node, element) }
    case '$in':
    case '$nin':
    case '$all':
      if (condition.values.some(value => typeof value === 'object' && value !== null)) throw wholeObjects(at)
      return condition
    case '$eq':
    case '$ne':
    case '$lt':
    case '$lte':
    case '$gt':
    case '$gte':
      if (Array.isArray(condition.value) && condition.value.length > 0) throw wholeObjects(at)
      return condition
    default:
      return condition
  }
}

const wholeObjects = (at: string) =>
  badQuery(at, 'cannot compare whole objects; select on their fields, as in {"$elemMatch": {"<field>": …}}')

const bindObject = (condition: Condition, resource: Resource, at: string): Condition => {
  switch (condition.operator) {
    case '$keyMapMatch': {
      // The keys are known before any row is read.
      const found = Object.keys(resource.fields).some(key => evaluate(condition.node, key))
      return found ? { operator: '$type', value: 'object' } : { operator: '$in', values: [] }
    }
    case '$eq':
    case '$ne':
    case '$lt':
    case '$lte':
    case '$gt':
    case '$gte': {
      if (!isObject(condition.value)) return condition
      if (Object.keys(condition.value).length === 0) return comparedWithEmptyObject[condition.operator]
      const names = Object.keys(resource.fields).join(', ')
      throw badQuery(at, `cannot compare whole objects; select on their fields, as in {"<field>": …}. Fields: ${names}`)
    }
    case '$in':
    case '$nin':
      if (condition.values.some(isObject)) throw badQuery(at, 'cannot compare whole objects; select on their fields')
      return condition
    case '$elemMatch':
    case '$allMatch':
      // An object is never a list, but the named fields are still checked.
      bindIn(condition.node, { kind: 'object', resource })
      return { operator: '$in', values: [] }
    default:
      return condition
  }
}

/** Every row has fields, so it sorts after `{}`, and null sorts before. */
const comparedWithEmptyObject: Record<Comparison, Condition> = {
  $eq: { operator: '$in', values: [] },
  $ne: { operator: '$nin', values: [] },
  $lt: { operator: '$type', value: 'null' },
  $lte: { operator: '$type', value: 'null' },
  $gt: { operator: '$type', value: 'object' },
  $gte: { operator: '$type', value: 'object' },
}

const checkEnum = (value: Json, { values }: Scalar, at: string): Json => {
  if (values === undefined || typeof value !== 'string' || values.includes(value)) return value
  throw badQuery(
    at,
    `${quoted(value)} is not one of its values${didYouMean(value, values)} Values: ${values.join(', ')}`,
  )
}

/** A time in Tidings' format, or a date unchanged. Throws `MangoError` for an invalid one. */
export const timeOrDate = (value: Json, { type }: { type: ScalarType }, at: string): Json => {
  if (value === null || (type !== 'time' && type !== 'date')) return value
  const given = typeof value === 'string' ? quoted(value) : typeOf(value)
  const ms = typeof value === 'string' ? parseIso(value) : undefined
  if (type === 'time') {
    if (ms === undefined)
      throw badQuery(at, `takes a time in ISO 8601, such as "2026-11-21T00:40:01+00:00", or null, not ${given}`)
    return toIso(ms)
  }
  if (ms === undefined || (value as string).length !== 10)
    throw badQuery(at, `takes a date, such as "2026-11-21", or null, not ${given}`)
  return value
}
