import {
  type FieldNode,
  GraphQLError,
  type GraphQLObjectType,
  getNamedType,
  getNullableType,
  isListType,
  isObjectType,
  Kind,
  type SelectionSetNode,
  type ValidationContext,
  type ValidationRule,
} from 'graphql'
import { TidingsError } from '../../shared/errors.ts'

// A mutation is answered in the process that makes it, beside the deliveries: with what a row is and the single rows
// that it names. Lists are a query, which a reader answers.

/** The lists that belong to what a mutation has made, where they have no arguments. */
const OWN_LISTS = ['Delivery.attempts', 'AccessToken.organisations']

/** Refuses a mutation whose answer has a list, before anything is done. */
export const noListsInMutations: ValidationRule = context => ({
  OperationDefinition: ({ operation, selectionSet }) => {
    const root = context.getSchema().getMutationType()!
    if (operation !== 'mutation') return
    const seen = new Set<string>()
    for (const { selectionSet: below, name } of fieldsOf(context, selectionSet, seen, '')) {
      const type = root.getFields()[name.value]?.type
      if (below && type) refuseLists(context, below, getNamedType(type) as GraphQLObjectType, true, seen)
    }
  },
})

/**
 * @param isOwn whether the type is of what the mutation has made, not of what that names
 * @param seen the fragments that were looked at: they may double, or go in a circle
 */
const refuseLists = (
  context: ValidationContext,
  set: SelectionSetNode,
  type: GraphQLObjectType,
  isOwn: boolean,
  seen: Set<string>,
): void => {
  for (const node of fieldsOf(context, set, seen, `${type.name} ${isOwn}`)) {
    const field = isObjectType(type) ? type.getFields()[node.name.value] : undefined
    const below = field && getNamedType(field.type)
    if (!node.selectionSet || !isObjectType(below)) continue
    const isKept = isOwn && !node.arguments?.length && OWN_LISTS.includes(`${type.name}.${node.name.value}`)
    if (isListType(getNullableType(field!.type)) && !isKept) context.reportError(isList(node, type))
    else refuseLists(context, node.selectionSet, below, isOwn && !('id' in type.getFields()), seen)
  }
}

/** The fields of a selection and of its fragments, each fragment once at a place. */
function* fieldsOf(
  context: ValidationContext,
  { selections }: SelectionSetNode,
  seen: Set<string>,
  place: string,
): Generator<FieldNode> {
  for (const selection of selections) {
    if (selection.kind === Kind.FIELD) yield selection
    else if (selection.kind === Kind.INLINE_FRAGMENT) yield* fieldsOf(context, selection.selectionSet, seen, place)
    else {
      const key = `${selection.name.value} ${place}`
      const fragment = seen.has(key) ? undefined : context.getFragment(selection.name.value)
      seen.add(key)
      if (fragment) yield* fieldsOf(context, fragment.selectionSet, seen, place)
    }
  }
}

const isList = (node: FieldNode, { name }: GraphQLObjectType) => {
  const field = `${name}.${node.name.value}`
  const kept = OWN_LISTS.includes(field) ? ', or without arguments of what the mutation itself answers' : ''
  const instead = `ask for it in a query${kept}.`
  const message = `${field} is a list, which a mutation does not answer. Nothing was done: ${instead}`
  return new GraphQLError(message, { nodes: node, originalError: new TidingsError('BAD_USER_INPUT', message) })
}
