import { setTimeout as sleep } from 'node:timers/promises'
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
import { RETRY_AFTER_S } from '../database/patience.ts'
import type { Claim } from '../domain/idempotency.ts'
import { CarryingSignature, useSignatureOnce } from '../domain/used-signatures.ts'
import { BUDGET, Budget, overspent } from '../graphql/budget.ts'
import { type Context, createContext, type Service } from '../graphql/context.ts'
import { createReader } from '../graphql/documents.ts'
import { asGraphqlError, isUnavailable, presentError } from '../graphql/errors.ts'
import { variablesNotGiven } from '../graphql/variables.ts'
import type { Log } from '../log.ts'
import { type Authenticated, refuseReplay } from './authenticate.ts'
import { CLOCK_WINDOW_MS } from './hmac.ts'
import { claimOf, endClaim } from './idempotency-key.ts'
import { answerError } from './request-id.ts'

/** Serves GraphQL over HTTP to an authenticated request. */
export const graphqlOverHttp = (schema: GraphQLSchema, service: Service, log: Log): Middleware<Authenticated> => {
  const read = createReader(schema)
  const { knex } = service.database
  return async ctx => {
    const { token, requestId, rawBody, signature, giveUpAt } = ctx.state
    // Answers without anything having been executed.
    let instead: (() => void) | undefined
    let claim: Claim | undefined
    let carrying: CarryingSignature | undefined
    const codes = new Set<unknown>()
    const present = presentError(requestId, log)
    let isAway = false
    let context: Context | undefined
    let serialised: string | undefined
    const budget = new Budget()

    const handle = createHandler<unknown, unknown, Context>({
      formatError: error => {
        const shown = present(error, context?.hasChanged)
        codes.add(shown.extensions.code)
        return shown
      },
      // graphql's own takes a tenth more time where there are many rows. Nothing in the schema is deferred.
      execute: async args => {
        const work = () => executeInTime(args, giveUpAt)
        try {
          // A mutation ends when it has done what it does, whoever waits for it and however long that takes.
          if (operationOf(args) !== 'query') return await budget.within(work)
          ctx.res.once('close', () => budget.end(new TidingsError('QUERY_TOO_COMPLEX', 'The client is gone.')))
          return await budget.within(work, BUDGET.timeMs)
        } catch (error) {
          return { errors: [asGraphqlError(error)] }
        }
      },
      onSubscribe: async (request, { query, operationName, variables }) => {
        const { document, faults } = read(query, variables)
        if (faults) return faults
        const operation = getOperationAST(document, operationName)
        if (!operation) return [asGraphqlError(noSuchOperation(document, operationName))]
        const notGiven = variablesNotGiven(document, operation, variables)
        if (notGiven.length > 0) return notGiven
        if (operation.operation === 'mutation' && request.method === 'POST') {
          // As long as the clock window would let the same request in again.
          const expiresAt = service.tools.clock.now() + 2 * CLOCK_WINDOW_MS
          if (ctx.headers['idempotency-key'] === undefined) {
            carrying = new CarryingSignature(signature, expiresAt)
          } else {
            // What is answered from a key makes no transaction.
            const isNew = await useSignatureOnce(knex, { signature, expiresAt, giveUpAt })
            const claimed = isNew ? await claimOf(ctx, service) : () => refuseReplay(ctx)
            if (typeof claimed === 'function') {
              instead = claimed
              return [null, { status: 200, statusText: 'OK' }]
            }
            claim = claimed
          }
        }
        context = createContext(service, token, requestId, { claim, carrying, budget })
        return { schema, document, operationName, variableValues: variables, contextValue: context }
      },
      onOperation: (_request, _args, result) => {
        if (!('data' in result) || result.errors) {
          isAway = 'errors' in result && isUnavailable(result) && !context?.hasChanged
          return undefined
        }
        // graphql-http would look for errors in each value, which takes longer than all else that JSON.stringify does.
        const text = JSON.stringify(result)
        // What is escaped in it, and what is not ASCII, is longer than was counted.
        if (Buffer.byteLength(text) > BUDGET.bytes) return { errors: [asGraphqlError(overspent('bytes'))] }
        serialised = text
        return { data: null }
      },
    })

    const handled = handle({
      url: ctx.url,
      method: ctx.method,
      headers: ctx.headers,
      body: () => rawBody.toString('utf8'),
      raw: ctx.req,
      context: undefined,
    })
    const [body, init] = await handled.catch(async error => {
      await claim?.release()
      await carrying?.end(knex)
      throw error
    })
    if (carrying && !(await carrying.end(knex))) return refuseReplay(ctx)
    if (instead) return instead()
    for (const [name, value] of Object.entries(init.headers ?? {})) ctx.set(name, value)
    const refusal = REFUSALS[init.status]
    if (refusal) return answerError(ctx, init.status, new TidingsError('BAD_USER_INPUT', refusal))
    ctx.status = isAway ? 503 : init.status
    if (isAway) ctx.set('Retry-After', String(RETRY_AFTER_S))
    ctx.body = serialised ?? body
    const contentType = init.headers?.['content-type'] ?? ''
    if (claim) await endClaim(claim, codes, { status: ctx.status, contentType, body: String(ctx.body) })
  }
}

const FIRST_REST_MS = 50
const LONGEST_REST_MS = 1_000

/** Executes an operation; a query again, until `giveUpAt`, while the database cannot be had for it. */
const executeInTime = async (args: ExecutionArgs, giveUpAt: number): Promise<ExecutionResult> => {
  const isQuery = getOperationAST(args.document, args.operationName)?.operation === 'query'
  for (let restMs = FIRST_REST_MS; ; restMs = Math.min(2 * restMs, LONGEST_REST_MS)) {
    const result = (await execute(args)) as ExecutionResult
    if (!isQuery || !result.errors || !isUnavailable(result) || performance.now() + restMs > giveUpAt) return result
    await sleep(restMs)
    ;(args.contextValue as Context).forget()
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
