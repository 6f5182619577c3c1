import type { Database } from '../database/connect.ts'
import type { Service } from '../graphql/context.ts'

/** What the middleware serves from, as far as the server has come: it may listen before its database answers. */
export type ServerState = {
  database?: Database
  service?: Service
  isOpen: boolean
  isStopping: boolean
  /** Why this process does not fit the others. */
  fault?: () => string | undefined
}
