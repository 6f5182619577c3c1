import { Kind, type OperationDefinitionNode } from 'graphql'

/** A bounded name for an operation of a valid document: its only field, `introspection`, or `several`. */
export const nameOfOperation = ({ selectionSet }: OperationDefinitionNode): string => {
  const names = new Set(
    selectionSet.selections.map(selection => (selection.kind === Kind.FIELD ? selection.name.value : 'several')),
  )
  const [name] = names
  if (names.size !== 1) return 'several'
  return name!.startsWith('__') ? 'introspection' : name!
}
