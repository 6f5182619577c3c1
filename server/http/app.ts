import Koa, { type Middleware } from 'koa'
import compose from 'koa-compose'
import type { Config } from '../config.ts'
import type { Database } from '../database/connect.ts'
import type { Service } from '../graphql/context.ts'
import { createSchema } from '../graphql/schema.ts'
import { type Log, logSeldom } from '../log.ts'
import { admit } from './admission.ts'
import { authenticate } from './authenticate.ts'
import { docs } from './docs.ts'
import { explorer } from './explorer.ts'
import { graphqlOverHttp } from './graphql.ts'
import { health } from './health.ts'
import { indexPage } from './index-page.ts'
import { keySet } from './key-set.ts'
import { refuseMalformed } from './malformed.ts'
import { type Metrics, metricsRoute } from './metrics.ts'
import { nothingHere, onlyMethods } from './nothing-here.ts'
import { rateLimit } from './rate-limit.ts'
import { whenReady } from './ready.ts'
import { requestId } from './request-id.ts'
import { webhookSpec } from './spec.ts'
import { closeUnread, dropStalled } from './unread.ts'

/** What the middleware serves from, as far as the server has come: it listens before its database answers. */
export type ServerState = { database?: Database; service?: Service; isStopping: boolean }

/** The server's middleware, in order. What each does is said in its own file. */
export const createApp = (tools: { config: Config; log: Log; metrics: Metrics; state: ServerState }): Koa => {
  const { config, log, metrics, state } = tools
  const service = () => state.service
  const keyring = () => state.service?.tools.keyring
  const app = new Koa()
  app.use(dropStalled(log))
  app.use(closeUnread())
  app.use(requestId(log))
  app.use(refuseMalformed)
  // First, since it is where nearly all requests go; the others have paths of their own.
  if (config.roles.includes('api')) app.use(at('/graphql', onlyMethods('GET', 'POST'), whenReady(service, api(tools))))
  app.use(keySet(keyring))
  app.use(health({ database: () => state.database, keyring, isStopping: () => state.isStopping }))
  app.use(metricsRoute(metrics))
  app.use(docs(webhookSpec(config)))
  if (config.roles.includes('api')) app.use(explorer())
  app.use(indexPage(config))
  app.use(nothingHere)
  app.on('error', error => logSeldom(log, 'warn', 'connection', { err: error }, 'a connection failed'))
  return app
}

/** What requests to the API go through once there is something to serve them with, in order. */
const api = ({ config, log }: { config: Config; log: Log }) => {
  const schema = createSchema()
  return (service: Service): Middleware => {
    const { database, sealer, tools } = service
    const { clock } = tools
    return inOrder(
      authenticate({ database, sealer, clock, signedAs: config.behindProxy ? new URL(config.baseUrl) : undefined }),
      admit(),
      rateLimit({ database, clock, limit: config.rateLimit, log }),
      graphqlOverHttp(schema, service, log),
    )
  }
}

const at = (path: string, ...middleware: Middleware[]): Middleware => {
  const composed = inOrder(...middleware)
  return (ctx, next) => (ctx.path === path ? composed(ctx, next) : next())
}

const inOrder = (...middleware: Middleware[]): Middleware => compose(middleware)
