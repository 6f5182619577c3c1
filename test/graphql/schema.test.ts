import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type GraphQLNamedType, isEnumType, isInputObjectType, isObjectType, isSpecifiedScalarType } from 'graphql'
import { BUDGET, COUNTED_AS } from '../../server/graphql/budget.ts'
import { createSchema } from '../../server/graphql/schema.ts'

const types = Object.values(createSchema().getTypeMap()).filter(
  type => !type.name.startsWith('__') && !isSpecifiedScalarType(type),
)

/** A type with all that it is made of, by name. */
const partsOf = (type: GraphQLNamedType): [name: string, part: { description?: string | null | undefined }][] => {
  if (isEnumType(type)) return type.getValues().map(value => [`${type.name}.${value.name}`, value])
  if (isInputObjectType(type))
    return Object.values(type.getFields()).map(field => [`${type.name}.${field.name}`, field])
  if (!isObjectType(type)) return []
  return Object.values(type.getFields()).flatMap(field => [
    [`${type.name}.${field.name}`, field],
    ...field.args.map(
      argument => [`${type.name}.${field.name}(${argument.name})`, argument] as [string, typeof argument],
    ),
  ])
}

test('every type, field, argument and enum value of the schema says what it is', () => {
  const silent = types
    .flatMap(type => [[type.name, type] as const, ...partsOf(type)])
    .flatMap(([name, part]) => (part.description ? [] : [name]))
  assert.deepEqual(silent, [])
})

test('the schema tells the budget of a request as it is', () => {
  const told = createSchema().getQueryType()!.description!.replaceAll(/\s+/g, ' ')
  const mebibytes = BUDGET.bytes / 1024 / 1024
  assert.ok(told.includes(`${BUDGET.values.toLocaleString('en')} fields (${COUNTED_AS}) or ${mebibytes} MiB`), told)
})
