import {
  type DocumentNode,
  type FieldNode,
  type FragmentDefinitionNode,
  type GraphQLSchema,
  getNamedType,
  getNullableType,
  isListType,
  isObjectType,
  Kind,
  type OperationDefinitionNode,
  type SelectionSetNode,
  type ValueNode,
  valueFromASTUntyped,
} from 'graphql'
import { TidingsError } from '../../shared/errors.ts'
import { resources } from '../domain/resources.ts'
import { BUDGET } from './budget.ts'

/** The most lexical tokens of a document; the parser stops at more. */
export const MAX_TOKENS = 4_000
/** The most characters of a document, because few tokens can be long. */
export const MAX_CHARACTERS = 65_536
/** Levels of fields below an operation. */
export const MAX_DEPTH = 12
/** The most aliases. */
export const MAX_ALIASES = 50

/** The most fields of a mutation, which is answered in one piece beside the deliveries. */
const MAX_MUTATION_FIELDS = 2_000

/**
 * The names of fields that multiply the fields below them, because they are lists of objects, and of those computed
 * from many rows.
 */
export const listsOf = (schema: GraphQLSchema): Set<string> => {
  const fields = Object.values(schema.getTypeMap()).flatMap(type =>
    isObjectType(type) && !type.name.startsWith('__') ? Object.values(type.getFields()) : [],
  )
  const lists = fields.filter(({ type }) => isListType(getNullableType(type)) && isObjectType(getNamedType(type)))
  const derived = Object.values(resources).flatMap(({ fields }) =>
    Object.keys(fields).filter(name => fields[name]!.kind === 'derived'),
  )
  return new Set([...lists.map(field => field.name), ...derived])
}

/** Rows and fields foreseen from the limits of lists; a list without a limit counts as one row. */
type Measure = { depth: number; aliases: number; rows: number; fields: number }

/**
 * Checks the foreseeable cost of each operation of a document. Throws QUERY_TOO_COMPLEX with the exceeded limit. Runs
 * before validation, which takes longer than the execution of some documents. Introspection is limited by a
 * validation rule, by tokens and by aliases.
 */
export const checkLimits = (
  document: DocumentNode,
  variables: Record<string, unknown> | null | undefined,
  lists: Set<string>,
): void => {
  const fragments = new Map(
    document.definitions.flatMap(definition =>
      definition.kind === Kind.FRAGMENT_DEFINITION ? [[definition.name.value, definition] as const] : [],
    ),
  )
  const measured = new Map<string, Measure>()
  for (const operation of document.definitions) {
    if (operation.kind !== Kind.OPERATION_DEFINITION) continue
    const measure = measureSelections(operation.selectionSet, {
      lists,
      fragments,
      measured,
      variables: { ...defaultsOf(operation), ...variables },
      within: [],
    })
    refuse('levels', measure.depth, MAX_DEPTH, 'ask for less at once, or in several requests', operation)
    refuse('aliases', measure.aliases, MAX_ALIASES, 'send several requests', operation)
    if (operation.operation === 'mutation') {
      refuse('fields', measure.fields, MAX_MUTATION_FIELDS, 'ask for what is made in a query', operation)
    }
    refuse('fields by its limits', measure.fields, BUDGET.values, 'give its lists smaller limits', operation)
    refuse('rows by its limits', measure.rows, BUDGET.rows, 'give its lists smaller limits', operation)
  }
}

const defaultsOf = ({ variableDefinitions = [] }: OperationDefinitionNode): Record<string, unknown> =>
  Object.fromEntries(
    variableDefinitions.flatMap(({ variable, defaultValue }) =>
      defaultValue ? [[variable.name.value, valueFromASTUntyped(defaultValue)]] : [],
    ),
  )

const refuse = (
  what: string,
  found: number,
  most: number,
  instead: string,
  operation: OperationDefinitionNode,
): void => {
  if (found <= most) return
  const name = operation.name ? ` ${operation.name.value}` : ''
  const [comesTo, allowed] = [Math.round(found), most].map(count => count.toLocaleString('en'))
  throw new TidingsError(
    'QUERY_TOO_COMPLEX',
    `The ${operation.operation}${name} has ${comesTo} ${what}; at most ${allowed} are allowed: ${instead}.`,
    { limit: most },
  )
}

export const tooLong = (characters: number): TidingsError => {
  const [has, allowed] = [characters, MAX_CHARACTERS].map(count => count.toLocaleString('en'))
  return new TidingsError(
    'QUERY_TOO_COMPLEX',
    `The document has ${has} characters; at most ${allowed} are allowed: give long values as variables.`,
    { limit: MAX_CHARACTERS },
  )
}

type Surroundings = {
  lists: Set<string>
  fragments: Map<string, FragmentDefinitionNode>
  /** A fragment is measured once, however often it is spread. */
  measured: Map<string, Measure>
  variables: Record<string, unknown>
  /** The fragments being measured, so that a cycle, which only validation refuses, does not loop here. */
  within: string[]
}

const measureSelections = (set: SelectionSetNode, around: Surroundings): Measure => {
  const total = { depth: 0, aliases: 0, rows: 0, fields: 0 }
  for (const selection of set.selections) {
    const part =
      selection.kind === Kind.FIELD
        ? measureField(selection, around)
        : selection.kind === Kind.INLINE_FRAGMENT
          ? measureSelections(selection.selectionSet, around)
          : measureFragment(selection.name.value, around)
    total.depth = Math.max(total.depth, part.depth)
    total.aliases += part.aliases
    total.rows += part.rows
    total.fields += part.fields
  }
  return total
}

const measureField = (field: FieldNode, around: Surroundings): Measure => {
  const name = field.name.value
  const aliases = field.alias && field.alias.value !== name ? 1 : 0
  if (!field.selectionSet) return { depth: 1, aliases, rows: 0, fields: 1 }
  const below = measureSelections(field.selectionSet, around)
  // Introspection cannot be larger than the schema.
  if (name.startsWith('__')) return { depth: 1, aliases: below.aliases + aliases, rows: 0, fields: 1 }
  const isList = around.lists.has(name)
  const times = isList ? rowsOf(field, around.variables) : 1
  return {
    depth: below.depth + 1,
    aliases: below.aliases + aliases,
    rows: times * (below.rows + (isList ? 1 : 0)),
    fields: 1 + times * below.fields,
  }
}

const measureFragment = (name: string, around: Surroundings): Measure => {
  const known = around.measured.get(name)
  if (known) return known
  const fragment = around.fragments.get(name)
  if (!fragment || around.within.includes(name)) return { depth: 0, aliases: 0, rows: 0, fields: 0 }
  const measure = measureSelections(fragment.selectionSet, { ...around, within: [...around.within, name] })
  around.measured.set(name, measure)
  return measure
}

/** The number of rows that a list's limit asks for. */
const rowsOf = (field: FieldNode, variables: Record<string, unknown>): number => {
  const query = field.arguments?.find(argument => argument.name.value === 'query')?.value
  const limit = query && limitOf(query, variables)
  return typeof limit === 'number' && limit >= 0 ? limit : 1
}

const limitOf = (query: ValueNode, variables: Record<string, unknown>): unknown => {
  if (query.kind === Kind.VARIABLE) return (variables[query.name.value] as { limit?: unknown } | undefined)?.limit
  if (query.kind !== Kind.OBJECT) return undefined
  const limit = query.fields.find(field => field.name.value === 'limit')?.value
  if (limit?.kind === Kind.VARIABLE) return variables[limit.name.value]
  return limit?.kind === Kind.INT ? Number(limit.value) : undefined
}
