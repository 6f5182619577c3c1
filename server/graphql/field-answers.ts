import {
  type DocumentNode,
  type FieldNode,
  type GraphQLSchema,
  Kind,
  TypeInfo,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import type { ReaderAnswer } from '../readers/readers.ts'
import { BUDGET, BUDGET_HERE, overspent } from './budget.ts'
import { errorShown } from './errors.ts'

// A mutation of several fields answers each of them before the next one changes something (GraphQL, section 6.2.2). If
// the answers have lists, a reader reads them, field by field.

type ErrorShown = Parameters<typeof errorShown>[0]
type FieldAnswer = { value: string; errors: ErrorShown[]; codes: Set<unknown> }

/** Reads the answer to one field of a mutation, by its name in the answer, from the field's result. */
export type ReadField = (name: string, outcome: unknown) => Promise<FieldAnswer>

/** The answers to the fields of one mutation, which share the budget of a request. */
export class FieldAnswers {
  readonly #readField: ReadField
  readonly #values = new Map<string, string>()
  readonly #errors: ErrorShown[] = []
  readonly codes = new Set<unknown>()
  #characters = 0
  #ms = 0

  constructor(readField: ReadField) {
    this.#readField = readField
  }

  /** Throws the error that ends the whole mutation. */
  async read(name: string, outcome: unknown): Promise<void> {
    const startedAt = performance.now()
    const { value, errors, codes } = await this.#readField(name, outcome)
    this.#ms += performance.now() - startedAt
    this.#characters += value.length
    if (this.#ms > BUDGET.timeMs) throw overspent('timeMs')
    if (this.#characters > BUDGET_HERE.bytes) throw overspent('bytes', BUDGET_HERE)
    this.#values.set(name, value)
    this.#errors.push(...errors)
    for (const code of codes) this.codes.add(code)
  }

  /** The result of the mutation in JSON; `data` has what needed no reading. */
  text(data: Record<string, unknown>): string {
    const fields = Object.entries(data).map(
      ([name, value]) => `${JSON.stringify(name)}:${this.#values.get(name) ?? JSON.stringify(value)}`,
    )
    const errors = this.#errors.length > 0 ? `"errors":${JSON.stringify(this.#errors)},` : ''
    return `{${errors}"data":{${fields.join()}}}`
  }
}

/** The answer to one field, as a reader gave it. Throws the error if it has none. */
export const fieldAnswerOf = (name: string, { body, codes }: ReaderAnswer): FieldAnswer => {
  const text = Buffer.concat(body).toString()
  const before = `{"data":{${JSON.stringify(name)}:`
  if (codes.size === 0 && text.startsWith(before)) return { value: text.slice(before.length, -2), errors: [], codes }
  const { data, errors = [] } = JSON.parse(text)
  if (!data) throw errorShown(errors[0])
  return { value: JSON.stringify(data[name]), errors, codes }
}

/** A document that makes the mutations and answers only the names of their types. */
export const withoutAnswers = (document: DocumentNode, schema: GraphQLSchema): DocumentNode =>
  changeMutations(document, schema, node => (node.selectionSet ? { ...node, selectionSet: TYPENAME } : undefined))

/** A document with only one field of its mutation, by its name in the answer. */
export const onlyField = (document: DocumentNode, schema: GraphQLSchema, name: string): DocumentNode =>
  changeMutations(document, schema, ({ alias, name: own }) => ((alias ?? own).value === name ? undefined : null))

/** @param change returns what takes the place of a field, null for nothing, undefined to keep it */
const changeMutations = (
  document: DocumentNode,
  schema: GraphQLSchema,
  change: (node: FieldNode) => FieldNode | null | undefined,
): DocumentNode => {
  const types = new TypeInfo(schema)
  const enter = (node: FieldNode) => (types.getParentType() === schema.getMutationType() ? change(node) : undefined)
  return visit(document, visitWithTypeInfo(types, { Field: { enter } }))
}

const TYPENAME: FieldNode['selectionSet'] = {
  kind: Kind.SELECTION_SET,
  selections: [{ kind: Kind.FIELD, name: { kind: Kind.NAME, value: '__typename' } }],
}
