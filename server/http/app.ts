import Koa, { type Middleware } from 'koa'
import compose from 'koa-compose'
import type { Config } from '../config.ts'
import { signedEvidence } from '../delivery/signed-evidence.ts'
import type { Service } from '../graphql/context.ts'
import { mutations } from '../graphql/mutations/mutations.ts'
import { createSchema } from '../graphql/schema.ts'
import { type Log, logSeldom } from '../log.ts'
import type { Metrics } from '../metrics/metrics.ts'
import type { Readiness } from '../readiness.ts'
import { Admission } from './admission.ts'
import { authenticate, readSignature } from './authenticate.ts'
import { docs } from './docs.ts'
import { explorer } from './explorer.ts'
import { graphqlOverHttp } from './graphql.ts'
import { health } from './health.ts'
import { indexPage } from './index-page.ts'
import { keySet } from './key-set.ts'
import { refuseMalformed } from './malformed.ts'
import { metricsRoute, onlyOperators } from './metrics.ts'
import { nothingHere, onlyMethods } from './nothing-here.ts'
import { rateLimit } from './rate-limit.ts'
import { whenReady } from './ready.ts'
import { requestId } from './request-id.ts'
import { webhookSpec } from './spec.ts'
import type { ServerState } from './state.ts'
import { traced } from './trace.ts'
import { closeUnread, dropStalled } from './unread.ts'

type Tools = { config: Config; log: Log; metrics: Metrics; state: ServerState; readiness: Readiness }

/** The server's middleware, in order. Each is described in its own file. */
export const createApp = (tools: Tools): Koa => {
  const { config, state } = tools
  const service = () => state.service
  const app = appWith(tools)
  app.use(refuseMalformed)
  // First, because nearly all requests go there; the others have paths of their own.
  if (config.roles.includes('api')) app.use(at('/graphql', onlyMethods('GET', 'POST'), whenReady(service, api(tools))))
  app.use(keySet(() => state.service?.tools.keyring))
  if (!config.operations) {
    app.use(onlyOperators(config.metricsToken))
    serveOperations(app, tools)
  }
  app.use(docs(webhookSpec(config)))
  if (config.roles.includes('api')) app.use(explorer())
  app.use(indexPage(config))
  app.use(nothingHere)
  return app
}

/** The middleware of the address for operations. */
export const createOperationsApp = (tools: Tools): Koa => {
  const app = appWith(tools)
  app.use(refuseMalformed)
  serveOperations(app, tools)
  app.use(nothingHere)
  return app
}

const serveOperations = (app: Koa, { metrics, readiness }: Tools): void => {
  app.use(health(readiness))
  app.use(metricsRoute(metrics))
}

/** The middleware of every request. */
const appWith = ({ config, log, metrics, state }: Tools): Koa => {
  const app = new Koa()
  app.use(closeIfClosed(state))
  app.use(dropStalled(log))
  app.use(closeUnread())
  app.use(requestId({ log, behindProxy: config.behindProxy, onAnswered: metrics.answered }))
  app.on('error', error => logSeldom(log, 'warn', 'connection', { err: error }, 'a connection failed'))
  return app
}

/**
 * Once the server has stopped listening, each connection ends with its present answer. If it ended while the server
 * still listened, a proxy would open another one, which is reset when the listening ends.
 */
const closeIfClosed =
  (state: ServerState): Middleware =>
  async (ctx, next) => {
    await next()
    if (state.isClosed) ctx.set('Connection', 'close')
  }

/** The middleware of requests to the API once the server is ready, in order. */
const api = ({ config, log }: { config: Config; log: Log }) => {
  const schema = createSchema(mutations, {
    deliveryEvidence: (_root, { deliveryId }, context) => signedEvidence(context, deliveryId),
  })
  return (service: Service): Middleware => {
    const { database, sealer, tools } = service
    const { clock } = tools
    const { refuseHopeless, admit } = new Admission()
    const signedAs = config.behindProxy ? new URL(config.baseUrl) : undefined
    return inOrder(
      readSignature(signedAs),
      refuseHopeless,
      authenticate({ database, sealer, clock, signedAs }),
      traced(),
      admit,
      rateLimit({ database, clock, limit: config.rateLimit }),
      graphqlOverHttp(schema, service, log),
    )
  }
}

const at = (path: string, ...middleware: Middleware[]): Middleware => {
  const composed = inOrder(...middleware)
  return (ctx, next) => (ctx.path === path ? composed(ctx, next) : next())
}

const inOrder = (...middleware: Middleware[]): Middleware => compose(middleware)
