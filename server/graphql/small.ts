import { type FieldNode, Kind, type OperationDefinitionNode, type SelectionSetNode, valueFromASTUntyped } from 'graphql'
import type { AccessToken } from '../domain/permissions.ts'
import { accessTokens, resources } from '../domain/resources.ts'
import type { Resource } from '../mango/resource.ts'

/** The most rows of a list. */
const MOST_ROWS = 100
/** The most fields of the document: with the rows, at most 5,000 are answered. */
const MOST_FIELDS = 50

type Variables = Record<string, unknown> | null | undefined

/**
 * Whether a query is cheap on any engine and with any number of rows: the caller's token, and lists by one id or of few
 * rows in the order of the primary key, with fields of the row and of single rows that it names. Passing such a query
 * to another process would cost more than answering it.
 */
export const isSmall = (operation: OperationDefinitionNode, variables: Variables, token: AccessToken): boolean => {
  let fields = 0

  const isWithin = (set: SelectionSetNode, resource: Resource): boolean =>
    set.selections.every(selection => {
      fields += 1
      if (selection.kind !== Kind.FIELD || fields > MOST_FIELDS) return false
      const field = resource.fields[selection.name.value]
      switch (field?.kind) {
        case 'column':
        case 'json':
          return true
        case 'list':
          return field.values !== undefined
        case 'related':
          return isWithin(selection.selectionSet!, field.resource())
        default:
          return selection.name.value === '__typename'
      }
    })

  const { selections } = operation.selectionSet
  return selections.every(selection => {
    if (selection.kind !== Kind.FIELD) return false
    const name = selection.name.value
    // Some hundred kilobytes at most, and no reader has the keys that sign it.
    if (name === 'deliveryEvidence') return selections.length === 1
    if (name === '__typename') return true
    if (name === 'viewer') return isWithin(selection.selectionSet!, accessTokens)
    // A visibility rule can make the database look at all rows to find a few.
    const resource = token.seesAllOrganisations ? resources[name] : undefined
    return resource !== undefined && isPage(selection, variables) && isWithin(selection.selectionSet!, resource)
  })
}

const isPage = ({ arguments: given }: FieldNode, variables: Variables): boolean => {
  const query = given?.find(({ name }) => name.value === 'query')
  const asked = query && (valueFromASTUntyped(query.value, variables) as Record<string, unknown> | null | undefined)
  const { limit, selector, ...more } = asked ?? {}
  if (Object.keys(more).length > 0) return false
  if (typeof selector !== 'object' || selector === null) return typeof limit === 'number' && limit <= MOST_ROWS
  return Object.keys(selector).join() === 'id' && 'id' in selector && typeof selector.id === 'string'
}
