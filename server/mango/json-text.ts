import type { Condition, FieldNode, Json, Node } from './selector.ts'

/** Characters that JSON never escapes, whatever wrote it. */
export const isPlainJson = (text: string): boolean => /^[ !#-.0-[\]-~]+$/.test(text)

/** Substrings, one of which the text of a JSON document must contain for a condition to hold. */
export const textIn = (condition: Condition): { part: string; ignoreCase: boolean }[] | undefined => {
  switch (condition.operator) {
    case '$eq':
      return wholeStrings([condition.value])
    case '$in':
      return condition.values.length <= 10 ? wholeStrings(condition.values) : undefined
    case '$beginsWith':
      return isPlainJson(condition.value) ? [{ part: `"${condition.value}`, ignoreCase: false }] : undefined
    case '$regex': {
      const { literals } = condition.pattern.prefilter
      const known = literals.length > 0 && literals.every(({ text }) => isPlainJson(text))
      return known ? literals.map(({ text, ignoreCase }) => ({ part: text, ignoreCase })) : undefined
    }
    case '$all':
      return wholeStrings(condition.values.slice(0, 1))
    case '$elemMatch':
      return textOf(condition.node)
    default:
      return undefined
  }
}

/** Substrings, one of which a document must contain for a node to be true of something in it. */
const textOf = (node: Node): { part: string; ignoreCase: boolean }[] | undefined => {
  if (node.kind === 'and') return node.nodes.map(textOf).find(found => found !== undefined)
  if (node.kind !== 'field' || node.negated) return undefined
  return textIn(node.condition) ?? keyIn(node)
}

const keyIn = ({ path, condition }: FieldNode): { part: string; ignoreCase: boolean }[] | undefined => {
  if (condition.operator === '$exists' && !condition.value) return undefined
  const key = lastKey(path)
  return key === undefined ? undefined : [{ part: `"${key}"`, ignoreCase: false }]
}

/** The last name in a path that appears unescaped in the document's text. */
export const lastKey = (path: string[]): string | undefined =>
  path.findLast(name => isPlainJson(name) && !/^[+-]?\d+$/.test(name))

const wholeStrings = (values: Json[]): { part: string; ignoreCase: boolean }[] | undefined => {
  if (values.length === 0 || !values.every(value => typeof value === 'string' && isPlainJson(value))) return undefined
  return values.map(value => ({ part: `"${value}"`, ignoreCase: false }))
}
