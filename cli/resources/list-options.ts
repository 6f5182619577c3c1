/** The options of every list. */
export interface ListOptions {
  selector?: string | undefined
  sort?: string | undefined
  limit?: number | undefined
  after?: string | undefined
  afterValues?: string | undefined
  all?: boolean | undefined
  count?: boolean | undefined
  by?: string[] | undefined
}
