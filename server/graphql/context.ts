import type { Database } from '../database/connect.ts'
import type { AttemptTools } from '../delivery/attempt.ts'
import type { DeliveryLoop } from '../delivery/loop.ts'
import type { Change } from '../domain/change.ts'
import type { AccessToken } from '../domain/permissions.ts'
import { visibleTo } from '../domain/visibility.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Row } from '../mango/documents.ts'
import { find } from '../mango/find.ts'
import type { Explain, MangoQuery } from '../mango/query.ts'
import type { Resource, Visible } from '../mango/resource.ts'
import { Budget } from './budget.ts'
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
  budget: Budget
  loaders: Loaders
  /** The visible rows of a resource that a query asks for, `among` those that are left by another condition. */
  list(resource: Resource, query: Query, among?: Visible): Promise<Row[]>
  /** How a query is answered. */
  explain(resource: Resource, query: Query): Promise<Explain>
  /** Runs a change in a transaction, and wakes the delivery loop when it is committed. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
  /** Forgets what was loaded before something is changed. */
  forget(): void
}

export const createContext = (
  service: Service,
  token: AccessToken,
  requestId: string,
  budget = new Budget(),
): Context => {
  const { database, tools, loop } = service
  const { knex } = database
  const related = visibleTo(token)
  const options = () => ({ related, now: tools.clock.now(), meter: budget })
  const loaders = () => createLoaders(database, tools.clock, token, budget)
  const context: Context = {
    ...service,
    token,
    requestId,
    budget,
    loaders: loaders(),
    async list(resource, query, among = () => {}) {
      const visible: Visible = builder => builder.modify(related(resource)).modify(among)
      const { rows } = await find(knex, resource, query, visible, options())
      return rows
    },
    async explain(resource, query) {
      const { explain } = await find(knex, resource, query, related(resource), { ...options(), explain: true })
      return explain
    },
    async change(work) {
      const result = await database.transaction(trx => work({ trx, token, now: tools.clock.now() }))
      loop.wake()
      return result
    },
    forget() {
      context.loaders = loaders()
    },
  }
  return context
}
