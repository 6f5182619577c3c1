import { badInput } from '../../shared/errors.ts'

/** A webhook's labels: short strings by key. */
export type Labels = Record<string, string>

const MOST = 20
const LONGEST_VALUE = 100
/** Without a dot, because a selector uses it for paths: `labels.team`. */
const KEY = /^[A-Za-z][A-Za-z0-9_-]{0,39}$/

/** Throws BAD_USER_INPUT unless `value` is an object of at most 20 short strings. */
export const checkLabels: (value: unknown) => asserts value is Labels = value => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw badInput('labels', 'must be an object with a string for each key, such as {"team": "payments"}')
  }
  const labels = Object.entries(value)
  if (labels.length > MOST) throw badInput('labels', `has ${labels.length} keys; at most ${MOST} are allowed`)
  for (const [key, text] of labels) {
    if (!KEY.test(key)) {
      const shown = JSON.stringify(key.slice(0, 80))
      throw badInput('labels', `the key ${shown} must be a letter and up to 39 more letters, digits, - and _`)
    }
    if (typeof text !== 'string') throw badInput('labels', `the value of ${key} is not a string`)
    if ([...text].length > LONGEST_VALUE) {
      throw badInput('labels', `the value of ${key} is longer than ${LONGEST_VALUE} characters`)
    }
    if (!text.isWellFormed() || /\p{Cc}/u.test(text)) {
      throw badInput('labels', `the value of ${key} has a control character or an unpaired surrogate`)
    }
  }
}

/** The stored form, in the order of the keys. */
export const labelsText = (labels: Labels): string =>
  JSON.stringify(Object.fromEntries(Object.entries(labels).toSorted(([a], [b]) => (a < b ? -1 : 1))))
