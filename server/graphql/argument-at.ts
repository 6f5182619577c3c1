import { type GraphQLError, Kind, parse, visit } from 'graphql'

/**
 * The name of the argument in whose value a fault of a document lies, or which takes the variable that is at fault.
 * Undefined where it lies elsewhere.
 */
export const argumentAt = ({ nodes, source, message }: GraphQLError): string | undefined => {
  const missing = NOT_PROVIDED.exec(message)
  if (missing) return missing[1]
  const node = nodes?.[0]
  const at = node?.loc
  if (!at || !source) return undefined
  const variable = node.kind === Kind.VARIABLE_DEFINITION ? node.variable.name.value : undefined
  let within: string | undefined
  let found: string | undefined
  visit(parse(source), {
    Argument: {
      enter({ name, loc }) {
        within = name.value
        if (!variable && loc!.start <= at.start && at.end <= loc!.end) found = name.value
      },
      leave() {
        within = undefined
      },
    },
    Variable({ name }) {
      if (name.value === variable) found ??= within
    },
  })
  return found
}

/** A required argument that is missing is nowhere in the document: graphql names it in its message alone. */
const NOT_PROVIDED = /^Argument "[^"(]*\((\w+):\)" of type "[^"]*" is required/
