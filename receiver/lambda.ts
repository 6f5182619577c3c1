import { toBytes } from '../shared/bytes.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/**
 * Of the event that a function URL gives to a function (payload
 * format 2.0, as of an HTTP API), what the receiver needs.
 */
export interface LambdaUrlEvent {
  requestContext?: { http?: { method?: string } }
  headers?: Record<string, string | undefined>
  body?: string | undefined
  isBase64Encoded?: boolean
}

export interface LambdaUrlResult {
  statusCode: number
  headers: Record<string, string>
  body: string
}

/**
 * A handler for AWS Lambda's function URLs: `export const handler = lambdaReceiver({…},
 * handler)`. What is given to `waitUntil` is waited for before the answer, since Lambda
 * freezes the process after it. Processes come and go: give it a replay store.
 */
export const lambdaReceiver = <Native extends LambdaUrlEvent = LambdaUrlEvent>(
  ...given: AdapterArguments<Native>
): ((event: Native) => Promise<LambdaUrlResult>) => {
  const receiver = receiverOf(given)
  return async given => {
    // What invokes a function otherwise than by its URL, such as a test of the console, gives it what it likes.
    const event = given ?? ({} as Native)
    const afterwards: Promise<unknown>[] = []
    const { status, headers, body } = await receiver.receive({
      method: event.requestContext?.http?.method,
      authorization: headerOf(event, 'authorization'),
      body: () => bodyOf(event),
      request: event,
      waitUntil: promise => afterwards.push(promise),
    })
    // A handler that is not done in time has been answered for already.
    if (status !== 503) await Promise.all(afterwards)
    const { connection: _, ...allowed } = headers
    return { statusCode: status, headers: allowed, body }
  }
}

/** Lower case in a function URL's events; a test written by hand may have them otherwise. */
const headerOf = ({ headers }: LambdaUrlEvent, name: string): string | undefined =>
  Object.entries(headers ?? {}).find(([key]) => key.toLowerCase() === name)?.[1]

const bodyOf = async ({ body, isBase64Encoded }: LambdaUrlEvent): Promise<Uint8Array> =>
  isBase64Encoded ? Uint8Array.from(atob(body ?? ''), it => it.charCodeAt(0)) : toBytes(body ?? '')
