import { GraphQLError, GraphQLScalarType, type ValueNode, valueFromASTUntyped } from 'graphql'
import { isId } from '../../shared/ids.ts'
import { parseIso } from '../../shared/time.ts'

/** Reads a value; `node` is its place in a document, if it has one. */
type Read = (value: unknown, node?: ValueNode) => unknown

const text =
  (name: string, isRight: (value: string) => boolean, example: string) =>
  (value: unknown, node?: ValueNode): string => {
    if (typeof value === 'string' && isRight(value)) return value
    throw new GraphQLError(`${name} cannot represent ${shown(value)}; write it as "${example}".`, { nodes: node })
  }

/** The beginning of a value, enough to recognise it. */
const shown = (value: unknown): string => {
  if (typeof value === 'string') return JSON.stringify(value.length > 80 ? `${value.slice(0, 79)}…` : value)
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'an object'
  return String(value)
}

const DATE_LENGTH = 10

const uuid = text('UUID', isId, '01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12')
const time = text(
  'DateTime',
  value => value.length > DATE_LENGTH && parseIso(value) !== undefined,
  '2026-11-21T00:40:01+00:00',
)
const date = text('Date', value => value.length === DATE_LENGTH && parseIso(value) !== undefined, '2026-11-21')

/** How each scalar of the schema reads its input. Ids are compared in lower case. */
const readers: Record<string, Read> = {
  UUID: (value, node) => uuid(value, node).toLowerCase(),
  DateTime: time,
  Date: date,
  JSON: value => value,
  MangoSelector: value => value,
  MangoSort: value => value,
}

export const completeScalars = (types: Iterable<unknown>): void => {
  for (const type of types) {
    if (!(type instanceof GraphQLScalarType)) continue
    const read = readers[type.name]
    if (!read) continue
    type.coerceInputValue = value => read(value)
    type.coerceInputLiteral = node => read(valueFromASTUntyped(node), node)
  }
}
