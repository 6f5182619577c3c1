import DataLoader from 'dataloader'
import { TidingsError } from '../../shared/errors.ts'
import type { Database } from '../database/connect.ts'
import type { AttemptTools } from '../delivery/attempt.ts'
import type { DeliveryLoop } from '../delivery/loop.ts'
import { type AccessToken, may, type Permission } from '../domain/access-tokens.ts'
import type { Change } from '../domain/change.ts'
import { visibleTo } from '../domain/visibility.ts'
import type { Sealer } from '../keys/seal.ts'
import { type Explain, find, findByParents, type MangoQuery } from '../mango/query.ts'
import type { Resource } from '../mango/resource.ts'
import { createLoaders, type Loaders } from './loaders.ts'

type Query = MangoQuery | null | undefined

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
  /** The visible rows of a resource that a query asks for. */
  list<Row>(resource: Resource, query: Query): Promise<Row[]>
  /** The visible rows of a resource that belong to a parent; those of all parents of a level cost one statement. */
  children<Row>(
    resource: Resource,
    query: Query,
    parents: { column: string; orderBy?: string },
    id: string,
  ): Promise<Row[]>
  /** The visible rows of a resource among those with these ids; those of all parents of a level cost one statement. */
  among<Row extends { id: string }>(resource: Resource, query: Query, ids: string[]): Promise<Row[]>
  /** How a query is answered. */
  explain(resource: Resource, query: Query): Promise<Explain>
  /** Runs a change in a transaction, and wakes the delivery loop when it is committed. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
}

export const createContext = (service: Service, token: AccessToken, requestId: string): Context => {
  const { database, tools, loop } = service
  const { knex, engine } = database
  const related = visibleTo(token)
  const nested = new Map<string, DataLoader<string, unknown[]>>()
  const shared = new Map<string, DataLoader<string[], unknown[]>>()
  const context: Context = {
    ...service,
    token,
    requestId,
    loaders: createLoaders(database, tools.clock),
    async list<Row>(resource: Resource, query: Query) {
      const { rows } = await find(knex, engine, resource, query, related(resource), { related })
      return rows as Row[]
    },
    children<Row>(resource: Resource, query: Query, parents: { column: string; orderBy?: string }, id: string) {
      const key = JSON.stringify([resource.name, parents.column, query])
      let loader = nested.get(key)
      if (!loader) {
        loader = new DataLoader(async ids => {
          const { rows } = await findByParents(
            knex,
            engine,
            resource,
            query,
            related(resource),
            { ...parents, ids },
            { related },
          )
          return ids.map(parent => rows.get(parent) ?? [])
        })
        nested.set(key, loader)
      }
      return loader.load(id) as Promise<Row[]>
    },
    async among<Row extends { id: string }>(resource: Resource, query: Query, ids: string[]) {
      const key = JSON.stringify([resource.name, 'id', query])
      let loader = shared.get(key)
      if (!loader) {
        loader = new DataLoader(async lists => {
          const { selector = {}, sort, limit, skip, after } = query ?? {}
          const all = [...new Set(lists.flat())]
          const rows = await context.list<Row>(resource, {
            selector: { $and: [{ id: { $in: all } }, selector] },
            sort: sort ?? null,
          })
          return lists.map(list => {
            const wanted = new Set(list)
            const own = rows.filter(row => wanted.has(row.id))
            const from = (after ? own.findIndex(row => row.id === after) + 1 : 0) + (skip ?? 0)
            return own.slice(from, from + (limit ?? own.length))
          })
        })
        shared.set(key, loader)
      }
      return loader.load(ids) as Promise<Row[]>
    },
    async explain(resource, query) {
      const { explain } = await find(knex, engine, resource, query, related(resource), { related, explain: true })
      return explain
    },
    async change(work) {
      const result = await database.transaction(trx =>
        work({ trx, dialect: database.dialect, token, now: tools.clock.now() }),
      )
      loop.wake()
      return result
    },
  }
  return context
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
