import { execute } from '@graphql-tools/executor'
import {
  createSourceEventStream,
  type DocumentNode,
  type ExecutionResult,
  type GraphQLSchema,
  getOperationAST,
  validateSubscriptionArgs,
} from 'graphql'
import { parseRequestParams, type RequestParams } from 'graphql-http'
import type { ParameterizedContext } from 'koa'
import { badInput } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import { deliveries } from '../domain/resources.ts'
import { visibleTo } from '../domain/visibility.ts'
import { checkJson } from '../graphql/body-limits.ts'
import { BUDGET, BUDGET_HERE, Budget } from '../graphql/budget.ts'
import { createContext, type Service } from '../graphql/context.ts'
import type { Documents } from '../graphql/documents.ts'
import { asGraphqlError, presentError } from '../graphql/errors.ts'
import type { GraphqlRequest } from '../graphql/request.ts'
import { variablesNotGiven } from '../graphql/variables.ts'
import { leastIdAt } from '../live/changes.ts'
import { alsoMatching, whereAmong } from '../live/live.ts'
import { Stream } from '../live/stream.ts'
import type { Log } from '../log.ts'
import { find } from '../mango/find.ts'
import type { ReaderAnswer } from '../readers/readers.ts'
import type { Authenticated } from './authenticate.ts'

type Context = ParameterizedContext<Authenticated>
type Asked = { document: DocumentNode; query: string; operationName?: string | null; variableValues: Variables }
type Variables = Record<string, unknown> | null

/** A longer document takes too long to validate beside other work. */
const LONGEST = 8_000
/** Changes missed for longer have to be queried. */
const MISSED_MS = 10 * 60_000
/** The longest time from a change's timestamp to its commit. */
const OVERLAP_MS = 5_000
/** The retries take 85 minutes, so recently settled deliveries were created since then. */
const SETTLED_MS = 90 * 60_000
const NOBODY = '00000000-0000-7000-8000-000000000000'

export const wantsEvents = (ctx: { get(name: string): string }): boolean =>
  /\btext\/event-stream\b/i.test(ctx.get('accept'))

/**
 * Answers a subscription with server-sent events (graphql-sse, distinct connections). Returns false for any other
 * request.
 */
export const subscribing =
  (schema: GraphQLSchema, documents: Documents, service: Service, log: Log) =>
  async (ctx: Context, request: GraphqlRequest, gone: AbortSignal): Promise<boolean> => {
    const asked = await subscriptionIn(request, documents)
    if (!asked) return false
    const { token, requestId, giveUpAt } = ctx.state
    const { database, tools, live } = service
    const present = presentError(requestId, log)
    const told = (error: unknown): string => JSON.stringify({ errors: [present(asGraphqlError(error))] })
    const answering: Parameters<typeof live.subscribe>[0]['answering'] = token => {
      const budget = new Budget(BUDGET_HERE)
      const contextValue = createContext(service, token, requestId, { budget })
      const answer = async (row: object): Promise<string> => {
        const rootValue = { deliveries: row }
        const result = (await execute({ schema, ...asked, rootValue, contextValue })) as ExecutionResult
        return JSON.stringify({
          ...result,
          ...(result.errors && { errors: result.errors.map(error => present(error)) }),
        })
      }
      return { meter: budget, answer: rows => budget.within(() => Promise.all(rows.map(answer)), BUDGET.timeMs) }
    }

    const open = (): Stream => {
      ctx.respond = false
      ctx.status = 200
      return new Stream(ctx.res)
    }
    let selector: unknown
    let missed: string[]
    try {
      selector = await selectorOf(schema, asked, createContext(service, token, requestId))
      // A selector that cannot be answered is refused at once.
      const options = { related: visibleTo(token), now: tools.clock.now(), meter: new Budget(BUDGET_HERE) }
      const query = { selector: whereAmong([NOBODY], selector), limit: 1 }
      await find(database.knex, deliveries, query, visibleTo(token)(deliveries), options)
      await live.ready(token.id, giveUpAt)
      missed = await missedSince(ctx.get('last-event-id'), selector, request, service, { giveUpAt, gone })
    } catch (error) {
      if ((error as { code?: unknown }).code === 'UNAVAILABLE') throw error
      open().complete(told(error))
      return true
    }
    if (gone.aborted) return true
    const { query, operationName, variableValues } = asked
    const key = JSON.stringify([token.id, query, operationName, variableValues])
    live.subscribe({ key, token, selector, answering, told, missed, stream: open() })
    return true
  }

const subscriptionIn = async (request: GraphqlRequest, documents: Documents): Promise<Asked | undefined> => {
  const { method, url, headers, body } = request
  let asked: RequestParams | undefined
  try {
    if (method === 'POST') checkJson(body)
    const parsed = await parseRequestParams({
      method,
      url,
      headers,
      body: () => body,
      raw: undefined,
      context: undefined,
    })
    asked = parsed && 'query' in parsed ? parsed : undefined
  } catch {
    return undefined
  }
  if (!asked || asked.query.length > LONGEST) return undefined
  const { query, operationName, variables = null } = asked
  const { document } = documents.read(query, variables)
  const operation = document && getOperationAST(document, operationName)
  if (operation?.operation !== 'subscription') return undefined
  if (variablesNotGiven(document!, operation, variables).length > 0) return undefined
  return { document: document!, query, ...(operationName != null && { operationName }), variableValues: variables }
}

/** The arguments of the subscription's field, as its resolver gets them: see schema.ts. Throws if they are invalid. */
const selectorOf = async (schema: GraphQLSchema, asked: Asked, contextValue: object): Promise<unknown> => {
  const { document, operationName, variableValues } = asked
  const args = validateSubscriptionArgs({ schema, document, operationName, variableValues, contextValue })
  if (!('schema' in args)) throw args[0]
  const source = await createSourceEventStream(args)
  if ('errors' in source) throw source.errors![0]
  for await (const given of source as AsyncIterable<{ selector: unknown }>) return given.selector
  return undefined
}

/**
 * The ids of deliveries that may have changed since a client's last event, found in a reader. Throws for a client that
 * was away too long.
 */
const missedSince = async (
  lastEventId: string,
  selector: unknown,
  request: GraphqlRequest,
  { readers, tools }: Service,
  terms: { giveUpAt: number; gone: AbortSignal },
): Promise<string[]> => {
  if (lastEventId === '') return []
  const now = tools.clock.now()
  const at = /^\d{13}$/.test(lastEventId) ? Number(lastEventId) : Number.NaN
  if (Number.isNaN(at)) throw badInput('Last-Event-ID', 'must be the id of an event of this stream, unchanged')
  if (now - at > MISSED_MS) {
    const message = `is from ${toIso(at)}; a stream resumes within ${MISSED_MS / 60_000} min: query what you missed`
    throw badInput('Last-Event-ID', message)
  }
  const since = at - OVERLAP_MS
  const changed = {
    id: { $gte: leastIdAt(since - SETTLED_MS) },
    $or: [
      { id: { $gte: leastIdAt(since) } },
      { finishedAt: { $gte: toIso(since) } },
      { status: 'pending', attemptCount: { $gt: 0 } },
    ],
  }
  const all = alsoMatching(changed, selector)
  const body = JSON.stringify({
    query: 'query ($selector: MangoSelector) { deliveries(query: { selector: $selector }) { id } }',
    variables: { selector: all },
  })
  const headers = { accept: 'application/json', 'content-type': 'application/json' }
  const asked = { ...request, method: 'POST', url: '/graphql', headers, body }
  const answer = await readers.ask(asked, { now, ...terms })
  const { data, errors } = JSON.parse(String(Buffer.concat((answer as ReaderAnswer).body)))
  if (errors) throw badInput('Last-Event-ID', `the missed changes cannot be found: ${errors[0].message}`)
  return (data.deliveries as { id: string }[]).map(({ id }) => id)
}
