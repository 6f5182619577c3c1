/** Throws a TypeError that says what was given and what it should be, unless `holds`. */
export const requireGiven = (holds: boolean, name: string, value: unknown, meaning: string): void => {
  if (!holds) throw new TypeError(`${name} is ${describe(value)}; it should be ${meaning}.`)
}

/** Refuses unknown options: a misspelt one would be a check that is not made. */
export const requireOptions = (options: object, names: readonly string[]): void => {
  const other = Object.keys(options).find(name => !names.includes(name))
  if (other !== undefined) throw new TypeError(`${other} is no option; these are: ${names.join(', ')}.`)
}

export const isFunction = (value: unknown): value is (...args: never[]) => unknown => typeof value === 'function'

/** Whether a value of any kind has all these methods. */
export const hasMethods = (value: unknown, ...names: string[]): boolean =>
  value !== undefined && value !== null && names.every(name => isFunction((value as Record<string, unknown>)[name]))

export const requireClock = (now: unknown): void =>
  requireGiven(isFunction(now), 'now', now, 'a function that returns epoch milliseconds')

const describe = (value: unknown): string => {
  try {
    return (JSON.stringify(value) ?? typeof value).slice(0, 200)
  } catch {
    return `a ${typeof value}`
  }
}
