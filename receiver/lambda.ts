import { toBytes } from '../shared/bytes.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/** The part of a function URL's event (payload format 2.0, the same as an HTTP API's) that the receiver uses. */
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
 * A handler for AWS Lambda's function URLs. Lambda freezes the process after the answer, so work passed to `waitUntil`
 * is done before it. Lambda's processes come and go: give the receiver a replay store that they share.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   export const handler = lambdaReceiver({ issuer, audience, replayStore }, async event => queue.push(event))
 */
export const lambdaReceiver = <Native extends LambdaUrlEvent = LambdaUrlEvent>(
  ...given: AdapterArguments<Native>
): ((event: Native) => Promise<LambdaUrlResult>) => {
  const receiver = receiverOf(given)
  return async given => {
    // Anything but the function URL, such as a test in the console, may invoke the function with any value.
    const event = given ?? ({} as Native)
    const afterwards: Promise<unknown>[] = []
    const { status, headers, body } = await receiver.receive({
      method: event.requestContext?.http?.method,
      authorization: headerOf(event, 'authorization'),
      body: () => bodyOf(event),
      request: event,
      waitUntil: promise => afterwards.push(promise),
    })
    // If time was up (503), it waits for nothing else.
    if (status !== 503) await Promise.all(afterwards)
    const { connection: _, ...allowed } = headers
    return { statusCode: status, headers: allowed, body }
  }
}

/** The names are in lower case in a function URL's events; a test written by hand may differ. */
const headerOf = ({ headers }: LambdaUrlEvent, name: string): string | undefined =>
  Object.entries(headers ?? {}).find(([key]) => key.toLowerCase() === name)?.[1]

const bodyOf = async ({ body, isBase64Encoded }: LambdaUrlEvent): Promise<Uint8Array> =>
  isBase64Encoded ? Uint8Array.from(atob(body ?? ''), it => it.charCodeAt(0)) : toBytes(body ?? '')
