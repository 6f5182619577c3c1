import { Kind, type OperationDefinitionNode } from 'graphql'

/**
 * What an operation asks for, in one of a few words: the field that it names, `introspection`, or `several`. Of a valid
 * document, whose fields are those of the schema.
 */
export const nameOfOperation = ({ selectionSet }: OperationDefinitionNode): string => {
  const names = new Set(
    selectionSet.selections.map(selection => (selection.kind === Kind.FIELD ? selection.name.value : 'several')),
  )
  const [name] = names
  if (names.size !== 1) return 'several'
  return name!.startsWith('__') ? 'introspection' : name!
}
