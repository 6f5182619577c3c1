import { createServer, type RequestListener, type ServerResponse } from 'node:http'
import { registerHooks } from 'node:module'
import type { AddressInfo } from 'node:net'
import { readConfig } from '../../../server/config.ts'
import type { AccessToken } from '../../../server/domain/permissions.ts'
import type { Service } from '../../../server/graphql/context.ts'
import { tokenOf } from './unsigned.ts'

// One of the servers under comparison, in a process of its own: node serve.ts
// tidings|yoga|apollo signed|unsigned, set up by the environment as `tidings server start` is. Tells
// its parent where it listens.
//
// Signed: the others have Tidings' own middleware in front, in Koa, which verifies a signature and looks up its token.
// Unsigned: Tidings is without that middleware and otherwise whole; the others stand by themselves.

const PROJECT = new URL('../../../package.json', import.meta.url).href
const RIVALS = new URL('../../../node_modules/.bench-rivals/package.json', import.meta.url).href

/** Needs release 17 of graphql, where Apollo has 16. No query comes to it. */
const SUBSCRIPTIONS = new URL('../../../server/graphql/subscription.ts', import.meta.url).href

const APP = new URL('../../../server/http/app.ts', import.meta.url).href
const UNSIGNED = new URL('unsigned.ts', import.meta.url).href

const [name, mode] = process.argv.slice(2) as [string, 'signed' | 'unsigned']
const isSigned = mode === 'signed'

/**
 * Finds what this file loads where the benchmark has installed it, and one copy of graphql for all, the one of
 * `graphqlOf`: two refuse each other's schema.
 */
const resolveFor = (graphqlOf: string) =>
  registerHooks({
    resolve: (specifier, context, next) => {
      if (specifier === 'graphql' || specifier.startsWith('graphql/'))
        return next(specifier, { ...context, parentURL: context.parentURL === SUBSCRIPTIONS ? PROJECT : graphqlOf })
      const isRival = context.parentURL === import.meta.url && isOfRivals(specifier)
      return next(specifier, isRival ? { ...context, parentURL: RIVALS } : context)
    },
  })

const isOfRivals = (specifier: string): boolean => /^(graphql-yoga|@apollo\/)/.test(specifier)

/** The part of the service that queries need. */
const openService = async () => {
  const { connect } = await import('../../../server/database/connect.ts')
  const database = await connect(readConfig().databaseUrl)
  return { database, tools: { clock: { now: () => Date.now() } } } as unknown as Service
}

/** The schema with its resolvers, and the context that they get. */
const resolving = async (service: Service) => {
  const { Budget } = await import('../../../server/graphql/budget.ts')
  const { createContext } = await import('../../../server/graphql/context.ts')
  const { createSchema } = await import('../../../server/graphql/schema.ts')
  const contextOf = (token: AccessToken, res: ServerResponse) => {
    const budget = new Budget()
    // Each request looks for whose turn it is among those that are not over.
    res.once('close', () => budget.within(() => {}))
    return createContext(service, token, '', { budget })
  }
  return { schema: createSchema(), contextOf }
}

type Verified = { token: AccessToken; rawBody: Buffer }
type Answer = (http: Parameters<RequestListener>, verified: Verified) => Promise<void>

/** Answers what Tidings' own middleware has verified. */
const verifying = async ({ database }: Service, answer: Answer): Promise<RequestListener> => {
  const { default: Koa } = await import('koa')
  const { authenticate, readSignature } = await import('../../../server/http/authenticate.ts')
  const { createSealer } = await import('../../../server/keys/seal.ts')
  const app = new Koa<Verified>()
  app.use(readSignature())
  app.use(authenticate({ database, sealer: createSealer(readConfig().masterKeys), clock: { now: () => Date.now() } }))
  app.use(ctx => {
    ctx.respond = false
    return answer([ctx.req, ctx.res], ctx.state)
  })
  return app.callback()
}

const listen = async (answer: RequestListener): Promise<string> => {
  const http = createServer(answer)
  await new Promise<void>(resolve => http.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}`
}

// Untyped: it is installed when the benchmark runs.
const load = (name: string) => import(name)

const servers: Record<string, () => Promise<string>> = {
  async tidings() {
    if (!isSigned)
      registerHooks({
        resolve: (specifier, context, next) =>
          context.parentURL === APP && specifier === './authenticate.ts'
            ? { url: UNSIGNED, shortCircuit: true }
            : next(specifier, context),
      })
    const { startServer } = await import('../../../server/main.ts')
    const { createLog } = await import('../../../server/log.ts')
    const config = readConfig()
    const server = await startServer(config, createLog(config.logLevel))
    await server.ready
    return server.url
  },

  async yoga() {
    resolveFor(PROJECT)
    const { createYoga } = await load('graphql-yoga')
    const service = await openService()
    const { schema, contextOf } = await resolving(service)
    const context = ({ token = tokenOf(0), res }: Partial<Verified> & { res: ServerResponse }) => contextOf(token, res)
    const yoga = createYoga({ schema, context, logging: false, graphiql: false, landingPage: false })
    if (!isSigned) return listen(yoga)
    const answer: Answer = async ([req, res], { token, rawBody }) => {
      // As a body parser in front of it does.
      const parsed = Object.assign(req, { body: JSON.parse(rawBody.toString()) })
      await yoga.requestListener(parsed, res, { token })
    }
    return listen(await verifying(service, answer))
  },

  async apollo() {
    resolveFor(RIVALS)
    const { ApolloServer, HeaderMap } = await load('@apollo/server')
    const service = await openService()
    const { schema, contextOf } = await resolving(service)
    const { getNullableType, isListType } = await load('graphql')
    // A long list is answered in parts, which its release of graphql does not take.
    for (const field of Object.values(schema.getQueryType()!.getFields())) {
      const { resolve } = field
      if (!resolve || !isListType(getNullableType(field.type))) continue
      field.resolve = async (...args) => {
        const found = await resolve(...args)
        if (!(Symbol.asyncIterator in Object(found))) return found
        const rows = []
        for await (const row of found as AsyncIterable<unknown>) rows.push(row)
        return rows
      }
    }
    const apollo = new ApolloServer({ schema })
    if (!isSigned) {
      const { startStandaloneServer } = await load('@apollo/server/standalone')
      const context = async ({ res }: { res: ServerResponse }) => contextOf(tokenOf(0), res)
      const { url } = await startStandaloneServer(apollo, { listen: { port: 0, host: '127.0.0.1' }, context })
      return new URL(url).origin
    }
    await apollo.start()
    // As Apollo's own integrations do.
    const answer: Answer = async ([req, res], { token, rawBody }) => {
      const headers = new HeaderMap()
      for (const [name, value] of Object.entries(req.headers)) headers.set(name, String(value))
      const {
        status,
        headers: own,
        body,
      } = await apollo.executeHTTPGraphQLRequest({
        httpGraphQLRequest: { method: 'POST', headers, search: '', body: JSON.parse(rawBody.toString()) },
        context: async () => contextOf(token, res),
      })
      for (const [name, value] of own) res.setHeader(name, value)
      res.statusCode = status ?? 200
      res.end(body.string)
    }
    return listen(await verifying(service, answer))
  },
}

process.on('disconnect', () => process.exit())
process.send!({ url: await servers[name]!() })
