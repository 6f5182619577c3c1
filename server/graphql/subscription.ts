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
import { badInput } from '../../shared/errors.ts'
import { toIso } from '../../shared/time.ts'
import { isPassing } from '../database/patience.ts'
import { deliveries } from '../domain/resources.ts'
import { visibleTo } from '../domain/visibility.ts'
import { leastIdAt } from '../ids.ts'
import type { Row } from '../mango/documents.ts'
import { find } from '../mango/find.ts'
import type { Answering } from './answer.ts'
import { checkJson } from './body-limits.ts'
import { BUDGET } from './budget.ts'
import { createQueryContext, type QueryContext, type QueryService } from './context.ts'
import type { Documents } from './documents.ts'
import type { presentError } from './errors.ts'
import type { GraphqlRequest, Task } from './request.ts'
import { variablesNotGiven } from './variables.ts'

/** A longer document is not cached, and would be parsed for every change. */
const LONGEST = 8_000
/** Changes missed for longer have to be queried. */
const MISSED_MS = 10 * 60_000
/** The longest time from a change's timestamp to its commit. */
const OVERLAP_MS = 5_000
/** The retries take 85 minutes, so recently settled deliveries were created since then. */
const SETTLED_MS = 90 * 60_000
const LAST_EVENT_ID = 'Last-Event-ID'

/** A stream ends when its client leaves more than a mebibyte unread, so one answer is smaller. */
export const SUBSCRIPTION_BUDGET = { ...BUDGET, bytes: 1_000_000 }

/** `budget`: of `SUBSCRIPTION_BUDGET`. */
type Tools = Pick<Answering, 'schema' | 'documents' | 'budget'> & {
  service: QueryService
  present: ReturnType<typeof presentError>
}
type Asked = { document: DocumentNode; operationName?: string | null; variableValues: Record<string, unknown> | null }

/**
 * What a subscription says of some deliveries, as they are now and as its token sees them: a result in JSON for each
 * that its selector matches; or the ids of deliveries that it may have missed. Undefined if the request is no valid
 * subscription. Throws what ends the subscription.
 */
export const followed = async (
  request: GraphqlRequest,
  task: Extract<Task, { kind: 'changed' | 'missed' }>,
  { schema, service, documents, budget, present }: Tools,
): Promise<string[] | undefined> => {
  const { token, requestId } = request
  const { database, tools } = service
  const asked = await subscriptionIn(request, documents)
  if (!asked) return undefined
  const contextValue = createQueryContext(service, token, requestId, budget)
  const selector = await selectorOf(schema, asked, contextValue)
  const now = tools.clock.now()
  const read = async (condition: object): Promise<Row[]> => {
    const related = visibleTo(token)
    const query = { selector: alsoMatching(condition, selector) }
    return (await find(database.knex, deliveries, query, related(deliveries), { related, now, meter: budget })).rows
  }
  const answer = async (row: Row): Promise<string> => {
    const result = (await execute({
      schema,
      ...asked,
      rootValue: { deliveries: row },
      contextValue,
    })) as ExecutionResult
    const errors = result.errors?.map(error => present(error))
    const away = errors?.findIndex(({ extensions }) => extensions.code === 'UNAVAILABLE') ?? -1
    if (away >= 0) throw result.errors![away]
    return JSON.stringify({ ...result, ...(errors && { errors }) })
  }
  if (task.kind === 'changed') return Promise.all((await read({ id: { $in: task.ids } })).map(answer))
  const missed = await read(changedSince(task.since, now)).catch(error => {
    throw isPassing(error) ? error : badInput(LAST_EVENT_ID, `the missed changes cannot be found: ${error.message}`)
  })
  return missed.map(({ id }) => String(id))
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
  return { document: document!, ...(operationName != null && { operationName }), variableValues: variables }
}

/** The arguments of the subscription's field, as its resolver gets them: see schema.ts. Throws if they are invalid. */
const selectorOf = async (schema: GraphQLSchema, asked: Asked, contextValue: QueryContext): Promise<unknown> => {
  const { document, operationName, variableValues } = asked
  const args = validateSubscriptionArgs({ schema, document, operationName, variableValues, contextValue })
  if (!('schema' in args)) throw args[0]
  const source = await createSourceEventStream(args)
  if ('errors' in source) throw source.errors![0]
  for await (const given of source as AsyncIterable<{ selector: unknown }>) return given.selector
  return undefined
}

/** The deliveries that may have changed since the id of an event. Throws for a client that was away too long. */
const changedSince = (lastEventId: string, now: number): object => {
  const at = /^\d{13}$/.test(lastEventId) ? Number(lastEventId) : Number.NaN
  if (Number.isNaN(at)) throw badInput(LAST_EVENT_ID, 'must be the id of an event of this stream, unchanged')
  if (now - at > MISSED_MS) {
    const message = `is from ${toIso(at)}; a stream resumes within ${MISSED_MS / 60_000} min: query what you missed`
    throw badInput(LAST_EVENT_ID, message)
  }
  const since = at - OVERLAP_MS
  return {
    id: { $gte: leastIdAt(since - SETTLED_MS) },
    $or: [
      { id: { $gte: leastIdAt(since) } },
      { finishedAt: { $gte: toIso(since) } },
      { status: 'pending', attemptCount: { $gt: 0 } },
    ],
  }
}

/**
 * Combines a condition with a caller's selector, if there is one. By itself an empty selector matches everything, but
 * as a part of another it means equality with `{}`, as in CouchDB.
 */
const alsoMatching = (condition: object, selector: unknown): object =>
  isEmpty(selector) ? condition : { $and: [condition, selector] }

const isEmpty = (selector: unknown): boolean =>
  selector === undefined ||
  selector === null ||
  (typeof selector === 'object' && !Array.isArray(selector) && Object.keys(selector).length === 0)
