import { GraphQLError, GraphQLScalarType, valueFromASTUntyped } from 'graphql'

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

const text = (name: string, pattern: RegExp, example: string) => (value: unknown) => {
  if (typeof value === 'string' && pattern.test(value)) return value
  throw new GraphQLError(`${name} cannot represent ${JSON.stringify(value)}; write it as "${example}".`)
}

const uuid = text('UUID', UUID, '01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12')
const time = text('DateTime', /^\d{4}-\d{2}-\d{2}T.*(Z|[+-]\d{2}:?\d{2})$/i, '2026-11-21T00:40:01+00:00')
const date = text('Date', /^\d{4}-\d{2}-\d{2}$/, '2026-11-21')

/** How each scalar of the schema reads its input. Ids are compared in lower case. */
const readers: Record<string, (value: unknown) => unknown> = {
  UUID: value => uuid(value).toLowerCase(),
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
    type.coerceInputValue = read
    type.coerceInputLiteral = node => read(valueFromASTUntyped(node))
  }
}
