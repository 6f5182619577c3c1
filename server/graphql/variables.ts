import {
  type ASTNode,
  type DocumentNode,
  GraphQLError,
  type OperationDefinitionNode,
  type VariableNode,
  visit,
} from 'graphql'

/**
 * The fault of a selector with a missing variable. GraphQL would drop the condition, and select more than was meant.
 */
export const variablesNotGiven = (
  document: DocumentNode,
  operation: OperationDefinitionNode,
  given: Record<string, unknown> | null | undefined,
): GraphQLError[] => {
  const missing = new Set(
    (operation.variableDefinitions ?? [])
      .filter(({ variable, defaultValue }) => !defaultValue && given?.[variable.name.value] === undefined)
      .map(({ variable }) => variable.name.value),
  )
  if (missing.size === 0) return []
  const found: VariableNode[] = []
  const inSelector = (node: ASTNode): void =>
    void visit(node, {
      Variable: variable => {
        if (missing.has(variable.name.value)) found.push(variable)
      },
    })
  visit(document, {
    OperationDefinition: node => (node === operation ? undefined : false),
    ObjectField: node => {
      if (node.name.value !== 'selector') return undefined
      inSelector(node.value)
      return false
    },
  })
  return found.map(
    variable =>
      new GraphQLError(`The variable $${variable.name.value} of a selector has no value: give it one, or null.`, {
        nodes: variable,
        extensions: { code: 'BAD_USER_INPUT' },
      }),
  )
}
