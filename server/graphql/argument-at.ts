import { type GraphQLError, Kind, parse, visit } from 'graphql'

/** The argument whose value, or whose variable, is at fault in a document. Undefined if the fault is elsewhere. */
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

/** A missing required argument is not in the document; graphql names it only in its message. */
const NOT_PROVIDED = /^Argument "[^"(]*\((\w+):\)" of type "[^"]*" is required/
