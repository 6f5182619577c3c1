import { type DocumentNode, type GraphQLError, type GraphQLSchema, parse, specifiedRules, validate } from 'graphql'
import { asGraphqlError } from './errors.ts'
import { checkLimits, listsOf, MAX_CHARACTERS, MAX_TOKENS, tooLong } from './limits.ts'
import { noListsInMutations } from './mutation-answer.ts'

/** The most characters of all cached documents; a parsed one takes about a hundred times as many bytes. */
const KEPT_CHARACTERS = 250_000
/** A longer document is not cached: it would take the room of many. */
const LONGEST_KEPT = 10_000

/** A longer unknown document takes too long to validate beside other work. */
const LONGEST_SHORT = 1_000

const RULES = [...specifiedRules, noListsInMutations]

type Variables = Record<string, unknown> | null | undefined
type Read = { document: DocumentNode; faults?: never } | { document?: never; faults: readonly GraphQLError[] }

export type Documents = {
  /** Whether reading a document may take longer than a few milliseconds. */
  isLong(text: string): boolean
  /**
   * Parses a document, checks its limits, and validates it. Recently used valid documents are cached; for these only
   * the limits are checked, because they also depend on the variables. Throws GraphQLError or QUERY_TOO_COMPLEX.
   *
   * @param isValid another process has found it valid
   */
  read(text: string, variables: Variables, isValid?: boolean): Read
}

export const createDocuments = (schema: GraphQLSchema): Documents => {
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

  return {
    isLong: text => text.length > LONGEST_SHORT && !valid.has(text),
    read(text, variables, isValid = false) {
      const known = valid.get(text)
      let document: DocumentNode
      try {
        document = known ?? parseWithin(text)
        checkLimits(document, variables, lists)
      } catch (error) {
        return { faults: [asGraphqlError(error)] }
      }
      if (known) {
        valid.delete(text)
        valid.set(text, known)
        return { document }
      }
      const faults = isValid ? [] : validate(schema, document, RULES)
      if (faults.length > 0) return { faults }
      keep(text, document)
      return { document }
    },
  }
}

const parseWithin = (text: string): DocumentNode => {
  if (text.length > MAX_CHARACTERS) throw tooLong(text.length)
  return parse(text, { maxTokens: MAX_TOKENS })
}
