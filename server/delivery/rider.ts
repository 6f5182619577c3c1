/** What somebody else wants to know of the database, read along with what the loop reads in any case. */
export type Rider = {
  /** The columns of one row, of subqueries that read an index's end; undefined while there is nothing to ask. */
  columns(): string | undefined
  /** Told what they were. */
  brought(row: object): void
}
