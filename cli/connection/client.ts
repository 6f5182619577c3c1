import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { codeOf } from '../../shared/errors.ts'
import { signRequest } from '../../shared/hmac.ts'
import { CliError, exitCodes } from '../errors.ts'
import type { Connection } from './connection.ts'
import { type ServerError, serverError } from './refusal.ts'
import { type Done, notReached, notTidings, Passing, passingError, whatMayBeDone } from './unreached.ts'

/** The time limit for a request and its retries: somewhat longer than a server waits for its database. */
const TIMEOUT_MS = 15_000
/**
 * The limit for a request with a ping, which takes 15 s at an endpoint that does not answer, after waits for a place
 * and a row.
 */
const PING_TIMEOUT_MS = 40_000
/** The limit for one of many polls: the next one asks again. */
export const LOOK_TIMEOUT_MS = 5_000
/** The slow mutations: those that ping, and a recovery, which works for 15 s at a time. */
const ANSWERED_LATE = /\b(?:createWebhook|upsertWebhook|pingWebhook|rehearse|recoverDeliveries)\b/
/** How often a request is retried that was never sent, or that changes nothing. */
const REPEATS = 2
/** How often a mutation is retried that may have been done. The locks of a dead server are free within 10 s. */
const MUTATION_REPEATS = 6
const FIRST_PAUSE_MS = 300
const LONGEST_PAUSE_MS = 3_000

/** Sends a query or mutation and returns its data. Throws a CliError. */
export type Ask = <Data>(document: string, variables?: object) => Promise<Data>

export interface GraphqlRequest {
  url: URL
  body: string
}

/** The request that `graphql` sends, before it is signed. */
export const graphqlRequest = (base: URL, document: string, variables: object): GraphqlRequest => ({
  url: new URL('graphql', base.href.endsWith('/') ? base : `${base.href}/`),
  body: JSON.stringify({ query: document, variables }),
})

interface Patience {
  /** Milliseconds for the request and its retries. */
  timeoutMs?: number
  /** Called before a retry with its reason and delay. */
  onRepeat?: (why: string, pauseMs: number) => void
  /** Aborts the request. */
  signal?: AbortSignal
}

/**
 * Sends a signed GraphQL request and returns its `data`. Retries after a broken connection, and while the server is
 * unreachable or busy; a mutation has one Idempotency-Key, so that it is done once.
 * @throws CliError with the exit code of the server's error
 */
export const graphql = async <Data>(
  connection: Connection,
  document: string,
  variables: object = {},
  {
    timeoutMs = ANSWERED_LATE.test(document) ? PING_TIMEOUT_MS : TIMEOUT_MS,
    onRepeat = () => {},
    signal,
  }: Patience = {},
): Promise<Data> => {
  const request = graphqlRequest(connection.url, document, variables)
  const idempotencyKey = hasMutation(document) ? randomUUID() : undefined
  const deadline = performance.now() + timeoutMs
  const seen = new Set<Done>()
  for (let repeats = 0; ; repeats++) {
    try {
      return await send<Data>(connection, request, { idempotencyKey, timeoutMs, deadline, signal })
    } catch (error) {
      if (!(error instanceof Passing) || signal?.aborted) throw error
      seen.add(error.done)
      const most =
        idempotencyKey !== undefined && (seen.has('refused') || seen.has('unknown')) ? MUTATION_REPEATS : REPEATS
      const pauseMs = Math.max(error.retryAfterMs, Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** repeats))
      if (repeats === most || performance.now() + pauseMs >= deadline) {
        throw idempotencyKey !== undefined && seen.has('unknown') ? whatMayBeDone(error) : error
      }
      onRepeat(error.message, pauseMs)
      await wait(pauseMs)
    }
  }
}

/** Whether a document may contain a mutation. In doubt yes, which does not change the answer to a query. */
export const hasMutation = (document: string): boolean => /\bmutation\b/.test(document)

const send = async <Data>(
  connection: Connection,
  { url, body }: GraphqlRequest,
  {
    idempotencyKey,
    timeoutMs,
    deadline,
    signal,
  }: { idempotencyKey: string | undefined; timeoutMs: number; deadline: number; signal: AbortSignal | undefined },
): Promise<Data> => {
  const { apiKey, apiSecret } = connection
  const credentials = { apiKey, apiSecret }
  const { host: _, ...headers } = sign({ method: 'POST', url, body, credentials, idempotencyKey })
  let response: Response
  let text: string
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json', accept: 'application/json' },
      body,
      redirect: 'manual',
      signal: AbortSignal.any([
        AbortSignal.timeout(Math.max(1, Math.ceil(deadline - performance.now()))),
        ...(signal ? [signal] : []),
      ]),
    })
    text = await response.text()
  } catch (error) {
    throw notReached(url, error, timeoutMs)
  }
  return dataOf(parseAnswer(text), url, response, connection) as Data
}

/** The data of an answer. Throws a CliError for one with errors, or that is no server's. */
export const dataOf = (answer: Answer | undefined, url: URL, response: Response, connection: Connection): unknown => {
  if (!answer) throw notTidings(url, response)
  const [error] = answer.errors ?? []
  const passing = error && passingError(error, response)
  if (passing) throw passing
  if (error && response.status === 404) throw notTidings(url, response)
  if (error) throw serverError(error, response, connection)
  return answer.data
}

/** The headers of a signed request, with the present time and a new nonce. Throws a CliError for a malformed secret. */
export const sign = (
  request: Omit<Parameters<typeof signRequest>[0], 'at' | 'nonce'> & { at?: Date; nonce?: string },
): Record<string, string> => {
  try {
    return signRequest({ at: new Date(), nonce: randomUUID(), ...request })
  } catch (error) {
    if (codeOf(error) !== 'INVALID_API_SECRET') throw error
    throw new CliError(
      exitCodes.notPermitted,
      'INVALID_API_SECRET',
      (error as Error).message,
      'See where it comes from with: tidings config. Correct that, or save it again with: tidings login',
    )
  }
}

export type Answer = { data?: unknown; errors?: ServerError[] }

export const parseAnswer = (text: string): Answer | undefined => {
  try {
    const answer: unknown = JSON.parse(text)
    const known = typeof answer === 'object' && answer !== null && ('data' in answer || 'errors' in answer)
    return known ? (answer as Answer) : undefined
  } catch {
    return undefined
  }
}
