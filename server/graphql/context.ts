import DataLoader from 'dataloader'
import type { FieldNode, GraphQLResolveInfo } from 'graphql'
import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import type { Permission } from '../../shared/vocabulary.ts'
import type { Database } from '../database/connect.ts'
import type { AttemptTools } from '../delivery/attempt.ts'
import type { DeliveryLoop } from '../delivery/loop.ts'
import { type AccessToken, may } from '../domain/access-tokens.ts'
import type { Change } from '../domain/change.ts'
import { organisations } from '../domain/organisations.ts'
import { visibleTo } from '../domain/visibility.ts'
import type { Sealer } from '../keys/seal.ts'
import { parsePage } from '../mango/page.ts'
import { type Explain, find, findByParents, type MangoQuery } from '../mango/query.ts'
import type { Resource } from '../mango/resource.ts'
import { createLoaders, type Loaders, maxBatchSize } from './loaders.ts'

type Query = MangoQuery | null | undefined

/** Stands for every token that sees all organisations. */
const ALL = 'all'

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
    info: GraphQLResolveInfo,
    resource: Resource,
    query: Query,
    parents: { column: string; orderBy?: string },
    id: string,
  ): Promise<Row[]>
  /**
   * The visible organisations that another token sees, all if it
   * is not named; the same statements for one token and for many.
   */
  seenOrganisations(info: GraphQLResolveInfo, query: Query, tokenId: string | undefined): Promise<{ id: string }[]>
  /** How a query is answered. */
  explain(resource: Resource, query: Query): Promise<Explain>
  /** Runs a change in a transaction, and wakes the delivery loop when it is committed. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
  /** Forgets what was loaded before something is changed. */
  forget(): void
}

export const createContext = (service: Service, token: AccessToken, requestId: string): Context => {
  const { database, tools, loop } = service
  const { knex, engine } = database
  const related = visibleTo(token)
  const mango = () => ({ related, now: tools.clock.now() })
  // By the field in the document: one field has the same arguments
  // wherever it is resolved, and they can be too large to compare.
  const nested = new Map<FieldNode, DataLoader<string, unknown[]>>()
  const loaderOf = (info: GraphQLResolveInfo, load: DataLoader.BatchLoadFn<string, unknown[]>) => {
    const field = info.fieldNodes[0]!
    const loader = nested.get(field) ?? new DataLoader(load, { maxBatchSize })
    nested.set(field, loader)
    return loader
  }
  const context: Context = {
    ...service,
    token,
    requestId,
    loaders: createLoaders(database, tools.clock, token),
    async list<Row>(resource: Resource, query: Query) {
      const { rows } = await find(knex, engine, resource, query, related(resource), mango())
      return rows as Row[]
    },
    children<Row>(
      info: GraphQLResolveInfo,
      resource: Resource,
      query: Query,
      parents: { column: string; orderBy?: string },
      id: string,
    ) {
      const loader = loaderOf(info, async ids => {
        const { rows } = await findByParents(
          knex,
          engine,
          resource,
          query,
          related(resource),
          { ...parents, ids },
          mango(),
        )
        return ids.map(parent => rows.get(parent) ?? [])
      })
      return loader.load(id) as Promise<Row[]>
    },
    seenOrganisations(info, query, tokenId) {
      const seenBy = async (tokenIds: string[], page: Query) => {
        const visible = (builder: Knex.QueryBuilder) => {
          related(organisations)(builder)
          builder.whereIn('organisations.id', seen => {
            seen.select('organisation_id').from('access_token_organisations').whereIn('access_token_id', tokenIds)
          })
        }
        const { rows } = await find(knex, engine, organisations, page, visible, mango())
        return rows as { id: string }[]
      }
      const loader = loaderOf(info, async keys => {
        const all = keys.includes(ALL) ? await context.list(organisations, query) : []
        const ids = keys.filter(key => key !== ALL)
        if (ids.length === 1) {
          const own = await seenBy(ids, query)
          return keys.map(key => (key === ALL ? all : own))
        }
        if (ids.length === 0) return keys.map(() => all)
        const { limit, skip } = parsePage(query ?? {}, organisations)
        const { selector, sort = null, after = null } = query ?? {}
        const some = await seenBy(ids, { selector, sort, after })
        const lists = await context.loaders.tokenOrganisationIds.loadMany(ids)
        const seen = new Map(ids.map((id, index) => [id, new Set(lists[index] as string[])]))
        return keys.map(key => {
          const own = seen.get(key)
          return own ? some.filter(({ id }) => own.has(id)).slice(skip, skip + (limit ?? some.length)) : all
        })
      })
      return loader.load(tokenId ?? ALL) as Promise<{ id: string }[]>
    },
    async explain(resource, query) {
      const { explain } = await find(knex, engine, resource, query, related(resource), { ...mango(), explain: true })
      return explain
    },
    async change(work) {
      const result = await database.transaction(trx =>
        work({ trx, dialect: database.dialect, token, now: tools.clock.now() }),
      )
      loop.wake()
      return result
    },
    forget() {
      nested.clear()
      context.loaders = createLoaders(database, tools.clock, token)
    },
  }
  return context
}

/** Throws FORBIDDEN unless the calling token has a permission. */
export const requirePermission = ({ token }: Context, permission: Permission): void => {
  if (may(token, permission)) return
  throw new TidingsError(
    'FORBIDDEN',
    `This needs the permission "${permission}", and the access token "${token.name}" has ` +
      `${token.permissions.join(', ')}.`,
    { permission },
  )
}
