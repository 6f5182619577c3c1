import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import type { Database } from '../database/connect.ts'
import type { AttemptTools } from '../delivery/attempt.ts'
import type { DeliveryLoop } from '../delivery/loop.ts'
import { type AccessToken, may, type Permission } from '../domain/access-tokens.ts'
import type { Change } from '../domain/change.ts'
import type { Sealer } from '../keys/seal.ts'
import { find, type MangoQuery } from '../mango/query.ts'
import type { Resource } from '../mango/resource.ts'
import { createLoaders, type Loaders } from './loaders.ts'

/** What resolvers share with the rest of the server. */
export type Service = {
  database: Database
  sealer: Sealer
  tools: AttemptTools
  loop: DeliveryLoop
  requireHttps: boolean
  reportDueDays: number
}

/** One request: who asks, and what it has loaded already. */
export type Context = Service & {
  token: AccessToken
  requestId: string
  loaders: Loaders
  /** The visible rows that a query asks for. */
  list<Row>(
    resource: Resource,
    query: MangoQuery | null | undefined,
    visible: (builder: Knex.QueryBuilder) => void,
  ): Promise<Row[]>
  /** Runs a change in a transaction, and wakes the delivery loop when it is committed. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
}

export const createContext = (service: Service, token: AccessToken, requestId: string): Context => {
  const { database, tools, loop } = service
  return {
    ...service,
    token,
    requestId,
    loaders: createLoaders(database, tools.clock),
    async list<Row>(
      resource: Resource,
      query: MangoQuery | null | undefined,
      visible: (builder: Knex.QueryBuilder) => void,
    ) {
      const { rows } = await find(database.knex, database.engine, resource, query, visible)
      return rows as Row[]
    },
    async change(work) {
      const result = await database.transaction(trx =>
        work({ trx, dialect: database.dialect, token, now: tools.clock.now() }),
      )
      loop.wake()
      return result
    },
  }
}

/** Throws FORBIDDEN unless the calling token has a permission. */
export const requirePermission = ({ token }: Context, permission: Permission): void => {
  if (may(token, permission)) return
  throw new TidingsError(
    'FORBIDDEN',
    `This needs the permission "${permission}", and the access token "${token.name}" has ${token.permissions.join(', ')}.`,
    { permission },
  )
}
