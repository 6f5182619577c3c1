import type { Database } from '../database/connect.ts'
import type { Service } from '../graphql/context.ts'

/** The services of the middleware, as far as they exist: the server may listen before its database answers. */
export type ServerState = {
  database?: Database
  service?: Service
  isOpen: boolean
  isStopping: boolean
  /** Whether it accepts no connections any more. */
  isClosed: boolean
  /** Why this process does not match the others, or its own children. */
  fault?: () => string | undefined
}
