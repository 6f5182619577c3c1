import { type DocumentNode, type GraphQLError, type GraphQLSchema, parse, validate } from 'graphql'
import { asGraphqlError } from './errors.ts'
import { checkLimits, listsOf, MAX_TOKENS } from './limits.ts'

/**
 * Of all documents that are kept, in characters of their text; a parsed one takes about a hundred times as many bytes.
 */
const KEPT_CHARACTERS = 250_000
/** A longer document is not kept: few would fill the place of many. */
const LONGEST_KEPT = 10_000

type Variables = Record<string, unknown> | null | undefined
type Read = { document: DocumentNode; faults?: never } | { document?: never; faults: readonly GraphQLError[] }

/**
 * Reads documents: parses them, checks the limits, validates. Valid documents are kept, the latest used, and of one
 * that is met again only the limits are checked, since they depend on the variables too.
 */
export const createReader = (schema: GraphQLSchema): ((text: string, variables: Variables) => Read) => {
  const lists = listsOf(schema)
  const valid = new Map<string, DocumentNode>()
  let characters = 0

  const keep = (text: string, document: DocumentNode): void => {
    if (text.length > LONGEST_KEPT) return
    valid.set(text, document)
    characters += text.length
    for (const oldest of valid.keys()) {
      if (characters <= KEPT_CHARACTERS) break
      valid.delete(oldest)
      characters -= oldest.length
    }
  }

  return (text, variables) => {
    const known = valid.get(text)
    let document: DocumentNode
    try {
      document = known ?? parse(text, { maxTokens: MAX_TOKENS })
      checkLimits(document, variables, lists)
    } catch (error) {
      return { faults: [asGraphqlError(error)] }
    }
    if (known) {
      valid.delete(text)
      valid.set(text, known)
      return { document }
    }
    const faults = validate(schema, document)
    if (faults.length > 0) return { faults }
    keep(text, document)
    return { document }
  }
}
