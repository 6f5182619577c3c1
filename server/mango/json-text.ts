import type { Condition, Json } from './selector.ts'

/** Characters that JSON always writes as they are, however it was written. */
export const isPlainJson = (text: string): boolean => /^[ !#-.0-[\]-~]+$/.test(text)

/** Pieces one of which the text of a JSON document must have for a condition to hold. */
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
    default:
      return undefined
  }
}

const wholeStrings = (values: Json[]): { part: string; ignoreCase: boolean }[] | undefined => {
  if (values.length === 0 || !values.every(value => typeof value === 'string' && isPlainJson(value))) return undefined
  return values.map(value => ({ part: `"${value}"`, ignoreCase: false }))
}
