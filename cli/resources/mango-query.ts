/** The argument of the API's lists; see MangoQuery in its schema. */
export interface MangoQuery {
  selector?: Record<string, unknown>
  sort?: Record<string, 'asc' | 'desc'>[]
  limit?: number
  skip?: number
  after?: string
  afterValues?: unknown[]
}

/**
 * Joins the given conditions with `and`; undefined if there are none. Empty conditions are dropped, because inside
 * another selector they would mean equality with `{}`, as in CouchDB.
 */
export const allOf = (given: Record<string, unknown>[]): Record<string, unknown> | undefined => {
  const conditions = given.filter(condition => Object.keys(condition).length > 0)
  return conditions.length > 1 ? { $and: conditions } : conditions[0]
}
