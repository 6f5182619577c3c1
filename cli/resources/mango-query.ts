/** What the API's lists take; see the description of MangoQuery in its schema. */
export interface MangoQuery {
  selector?: Record<string, unknown>
  sort?: Record<string, 'asc' | 'desc'>[]
  limit?: number
  skip?: number
  after?: string
  afterValues?: unknown[]
}

/** A selector that asks for all of the conditions that are given, or undefined when none is. */
export const allOf = (conditions: Record<string, unknown>[]): Record<string, unknown> | undefined =>
  conditions.length === 0 ? undefined : conditions.length === 1 ? conditions[0]! : { $and: conditions }
