/** Columns that another part of the process adds to a query that the delivery loop runs anyway. */
export type Rider = {
  /** Subqueries that read the end of an index, as columns of one row; undefined while none are needed. */
  columns(): string | undefined
  /** Receives their values. */
  brought(row: object): void
}
