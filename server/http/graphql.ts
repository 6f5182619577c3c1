import { execute } from '@graphql-tools/executor'
import {
  type DocumentNode,
  type ExecutionArgs,
  type ExecutionResult,
  type GraphQLSchema,
  getOperationAST,
  Kind,
} from 'graphql'
import { createHandler } from 'graphql-http'
import type { Middleware } from 'koa'
import { badInput, TidingsError } from '../../shared/errors.ts'
import { useSignature } from '../domain/used-signatures.ts'
import { BUDGET, Budget, overspent } from '../graphql/budget.ts'
import { type Context, createContext, type Service } from '../graphql/context.ts'
import { createReader } from '../graphql/documents.ts'
import { asGraphqlError, presentError } from '../graphql/errors.ts'
import type { Log } from '../log.ts'
import { type Authenticated, refuseReplay } from './authenticate.ts'
import { CLOCK_WINDOW_MS } from './hmac.ts'
import { answerError } from './request-id.ts'

/** Serves GraphQL over HTTP to an authenticated request. */
export const graphqlOverHttp = (schema: GraphQLSchema, service: Service, log: Log): Middleware<Authenticated> => {
  const read = createReader(schema)
  return async ctx => {
    const { token, requestId, rawBody, signature } = ctx.state
    let replayed = false
    let serialised: string | undefined
    const budget = new Budget()

    const handle = createHandler<unknown, unknown, Context>({
      formatError: presentError(requestId, log),
      // graphql's own takes a tenth more time where there are many rows. Nothing in the schema is deferred.
      execute: async args => {
        try {
          // A mutation ends when it has done what it does, whoever waits for it and however long that takes.
          if (operationOf(args) !== 'query') return await budget.within(() => execute(args) as Promise<ExecutionResult>)
          ctx.res.once('close', () => budget.end(new TidingsError('QUERY_TOO_COMPLEX', 'The client is gone.')))
          return await budget.within(() => execute(args) as Promise<ExecutionResult>, BUDGET.timeMs)
        } catch (error) {
          return { errors: [asGraphqlError(error)] }
        }
      },
      onSubscribe: async (request, { query, operationName, variables }) => {
        const { document, faults } = read(query, variables)
        if (faults) return faults
        const operation = getOperationAST(document, operationName)
        if (!operation) return [asGraphqlError(noSuchOperation(document, operationName))]
        if (operation.operation === 'mutation' && request.method === 'POST') {
          // As long as the clock window would let the same request in again.
          const expiresAt = service.tools.clock.now() + 2 * CLOCK_WINDOW_MS
          replayed = !(await useSignature(service.database.knex, signature, expiresAt))
          if (replayed) return [null, { status: 401, statusText: 'Unauthorized' }]
        }
        const contextValue = createContext(service, token, requestId, budget)
        return { schema, document, operationName, variableValues: variables, contextValue }
      },
      onOperation: (_request, _args, result) => {
        if (!('data' in result) || result.errors) return undefined
        // graphql-http would look for errors in each value, which takes longer than all else that JSON.stringify does.
        const text = JSON.stringify(result)
        // What is escaped in it, and what is not ASCII, is longer than was counted.
        if (Buffer.byteLength(text) > BUDGET.bytes) return { errors: [asGraphqlError(overspent('bytes'))] }
        serialised = text
        return { data: null }
      },
    })

    const [body, init] = await handle({
      url: ctx.url,
      method: ctx.method,
      headers: ctx.headers,
      body: () => rawBody.toString('utf8'),
      raw: ctx.req,
      context: undefined,
    })
    if (replayed) return refuseReplay(ctx)
    for (const [name, value] of Object.entries(init.headers ?? {})) ctx.set(name, value)
    const refusal = REFUSALS[init.status]
    if (refusal) return answerError(ctx, init.status, new TidingsError('BAD_USER_INPUT', refusal))
    ctx.status = init.status
    ctx.body = serialised ?? body
  }
}

const operationOf = ({ document, operationName }: ExecutionArgs): string | undefined =>
  getOperationAST(document, operationName)?.operation

const noSuchOperation = (document: DocumentNode, asked: string | null | undefined): TidingsError => {
  const names = document.definitions.flatMap(it =>
    it.kind === Kind.OPERATION_DEFINITION ? (it.name?.value ?? []) : [],
  )
  const wrong = asked == null ? 'the document has several operations' : `the document has no operation "${asked}"`
  return badInput('operationName', `${wrong}; choose from ${names.join(', ')}`)
}

/** What graphql-http refuses with a status and no words. */
const REFUSALS: Record<number, string> = {
  405: 'Send a query by POST or GET, and a mutation by POST.',
  406: 'Accept must let in application/graphql-response+json or application/json, in UTF-8.',
  415: 'Content-Type must be application/json, in UTF-8.',
}
