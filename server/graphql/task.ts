import { REQUEST_MS } from '../database/patience.ts'
import { type RedeliveryPage, redeliveryPage } from '../domain/redelivery.ts'
import type { ReaderAnswer } from '../readers/jobs.ts'
import type { Answering } from './answer.ts'
import { BUDGET, Budget } from './budget.ts'
import type { Context, QueryService } from './context.ts'
import { asGraphqlError, errorShown, presentError } from './errors.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp, type Task } from './request.ts'
import { followed, SUBSCRIPTION_BUDGET } from './subscription.ts'

export const budgetOf = ({ task }: GraphqlRequest, timeMs: number): Budget =>
  new Budget({ ...(task && task.kind !== 'redelivery' ? SUBSCRIPTION_BUDGET : BUDGET), timeMs })

/**
 * Does a task within the budget of one request. Status 200: the body has a line for each result. Status 204: the
 * request is not what the task is for. Any other status: the body is a GraphQL result in JSON, with the error.
 */
export const answerTask = async (
  request: GraphqlRequest,
  task: Task,
  {
    log,
    gone,
    ...answering
  }: Pick<Answering, 'schema' | 'log' | 'documents' | 'budget' | 'gone'> & { service: QueryService },
): Promise<GraphqlAnswer & { codes: Set<unknown> }> => {
  const { service, budget } = answering
  const present = presentError(request.requestId, log)
  const codes = new Set<unknown>()
  const work = async (): Promise<string[] | undefined> => {
    if (task.kind !== 'redelivery') return followed(request, task, { ...answering, present })
    const { database, tools } = service
    const on = { database, now: tools.clock.now(), token: request.token, meter: budget }
    return [JSON.stringify(await redeliveryPage(on, task.asked, task.soFar))]
  }
  try {
    if (gone.aborted) throw hungUp()
    gone.addEventListener('abort', () => budget.end(hungUp()), { once: true })
    const lines = await budget.withinTime(work)
    return { status: lines ? 200 : 204, headers: {}, body: lines?.join('\n') ?? '', codes }
  } catch (error) {
    const shown = present(asGraphqlError(error))
    codes.add(shown.extensions.code)
    return { status: 400, headers: {}, body: JSON.stringify({ errors: [shown] }), codes }
  }
}

/** Finds a page of deliveries to send again in a reader, for a mutation. Throws the error of the search. */
export const findRedeliveryPage = async (
  { readers, tools, token, requestId }: Context,
  task: Omit<Extract<Task, { kind: 'redelivery' }>, 'kind'>,
): Promise<RedeliveryPage> => {
  const request = { url: '/graphql', method: 'POST', headers: {}, body: '', token, requestId }
  // A mutation runs to its end, whether or not a client still waits.
  const gone = new AbortController().signal
  const terms = { now: tools.clock.now(), giveUpAt: performance.now() + REQUEST_MS, gone }
  const asked = { ...request, task: { kind: 'redelivery', ...task } } as const
  const { status, body } = (await readers.ask(asked, terms)) as ReaderAnswer
  const answered = JSON.parse(Buffer.concat(body).toString())
  if (status === 200) return answered
  throw errorShown(answered.errors[0])
}
