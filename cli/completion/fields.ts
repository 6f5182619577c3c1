import { readFileSync } from 'node:fs'
import { type FieldDefinitionNode, type ObjectTypeDefinitionNode, parse, type TypeNode } from 'graphql'

/** The fields of the list that the words before the cursor query, and those of what each row refers to. */
export const fieldsOf = (before: string[]): string[] => {
  const { definitions } = parse(readFileSync(new URL('../../server/graphql/schema.graphql', import.meta.url), 'utf8'))
  const types = new Map(definitions.filter(isObject).map(type => [type.name.value, type]))
  const below = ({ type }: FieldDefinitionNode) => types.get(nameOf(type))?.fields ?? []
  const list = types.get('Query')?.fields?.find(({ name }) => before.includes(name.value))
  return (list ? below(list) : []).flatMap(field => {
    const inner = below(field)
    if (inner.length === 0) return [field.name.value]
    return inner.flatMap(each => (below(each).length === 0 ? [`${field.name.value}.${each.name.value}`] : []))
  })
}

const isObject = (one: { kind: string }): one is ObjectTypeDefinitionNode => one.kind === 'ObjectTypeDefinition'

const nameOf = (type: TypeNode): string => (type.kind === 'NamedType' ? type.name.value : nameOf(type.type))
