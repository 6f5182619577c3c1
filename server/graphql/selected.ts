import { type GraphQLResolveInfo, Kind, type SelectionNode } from 'graphql'

/** The names of the fields that are selected below a field, whatever the variables say. */
export const selectedIn = ({ fieldNodes, fragments }: GraphQLResolveInfo): Set<string> => {
  const names = new Set<string>()
  const seen = new Set<string>()
  const collect = (selections: readonly SelectionNode[]): void => {
    for (const selection of selections) {
      if (selection.directives && selection.directives.length > 0) continue
      if (selection.kind === Kind.FIELD) names.add(selection.name.value)
      else if (selection.kind === Kind.INLINE_FRAGMENT) collect(selection.selectionSet.selections)
      else if (!seen.has(selection.name.value)) {
        seen.add(selection.name.value)
        collect(fragments[selection.name.value]!.selectionSet.selections)
      }
    }
  }
  for (const { selectionSet } of fieldNodes) collect(selectionSet?.selections ?? [])
  return names
}
