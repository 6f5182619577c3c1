import { createServer } from 'node:http'
import { registerHooks } from 'node:module'
import type { AddressInfo } from 'node:net'
import { readConfig } from '../../../server/config.ts'
import type { AccessToken } from '../../../server/domain/permissions.ts'
import type { Service } from '../../../server/graphql/context.ts'
import { permissions } from '../../../shared/vocabulary.ts'

// One of the servers under comparison, in a process of its own: node serve.ts
// tidings|yoga|apollo, set up by the environment as `tidings server start` is. Tells
// its parent where it listens.

const PROJECT = new URL('../../../package.json', import.meta.url).href
const RIVALS = new URL('../../../node_modules/.bench-rivals/package.json', import.meta.url).href

/** Needs release 17 of graphql, where Apollo has 16. No query comes to it. */
const SUBSCRIPTIONS = new URL('../../../server/graphql/subscription.ts', import.meta.url).href

/**
 * Finds what this file loads where the benchmark has installed it, and one copy of graphql for all, the one of
 * `graphqlOf`: two refuse each other's schema.
 */
const resolveFor = (graphqlOf: string) =>
  registerHooks({
    resolve: (specifier, context, next) => {
      if (specifier === 'graphql' || specifier.startsWith('graphql/'))
        return next(specifier, { ...context, parentURL: context.parentURL === SUBSCRIPTIONS ? PROJECT : graphqlOf })
      const isRival = context.parentURL === import.meta.url && !specifier.startsWith('.')
      return next(specifier, isRival ? { ...context, parentURL: RIVALS } : context)
    },
  })

/**
 * The schema with its resolvers, and the context they get from
 * an access token that sees everything, without a signature.
 */
const unauthenticated = async () => {
  const { connect } = await import('../../../server/database/connect.ts')
  const { createContext } = await import('../../../server/graphql/context.ts')
  const { createSchema } = await import('../../../server/graphql/schema.ts')
  // The part of the service that queries need.
  const service = {
    database: await connect(readConfig().databaseUrl),
    tools: { clock: { now: () => Date.now() } },
  } as unknown as Service
  const token: AccessToken = {
    id: '00000000-0000-7000-8000-000000000000',
    name: 'anybody',
    apiKey: '',
    permissions: [...permissions],
    seesAllOrganisations: true,
    expiresAt: null,
    revokedAt: null,
    lastUsedAt: null,
    createdAt: 0,
  }
  return { schema: createSchema(), context: () => createContext(service, token, '') }
}

// Untyped: it is installed when the benchmark runs.
const load = (name: string) => import(name)

const servers: Record<string, () => Promise<string>> = {
  async tidings() {
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
    const yoga = createYoga({ ...(await unauthenticated()), logging: false, graphiql: false, landingPage: false })
    const http = createServer(yoga)
    await new Promise<void>(resolve => http.listen(0, '127.0.0.1', resolve))
    return `http://127.0.0.1:${(http.address() as AddressInfo).port}`
  },

  async apollo() {
    resolveFor(RIVALS)
    const { ApolloServer } = await load('@apollo/server')
    const { startStandaloneServer } = await load('@apollo/server/standalone')
    const { schema, context } = await unauthenticated()
    const { url } = await startStandaloneServer(new ApolloServer({ schema }), {
      listen: { port: 0, host: '127.0.0.1' },
      context: async () => context(),
    })
    return new URL(url).origin
  },
}

process.on('disconnect', () => process.exit())
process.send!({ url: await servers[process.argv[2]!]!() })
