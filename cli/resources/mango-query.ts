/** What the API's lists take; see the description of MangoQuery in its schema. */
export interface MangoQuery {
  selector?: Record<string, unknown>
  sort?: Record<string, 'asc' | 'desc'>[]
  limit?: number
  skip?: number
  after?: string
  afterValues?: unknown[]
}

/**
 * A selector that asks for all of the conditions that are given, or undefined when none is. An empty one asks for
 * nothing; inside another it would ask for what is equal to `{}`, as in CouchDB.
 */
export const allOf = (given: Record<string, unknown>[]): Record<string, unknown> | undefined => {
  const conditions = given.filter(condition => Object.keys(condition).length > 0)
  return conditions.length > 1 ? { $and: conditions } : conditions[0]
}
