import { type AdapterArguments, receiverOf } from './receiver.ts'
import { fromFetch } from './verify.ts'

type WaitUntil = (promise: Promise<unknown>) => void

/**
 * Receives deliveries in frameworks of the Fetch API: Hono, Next.js route handlers, Workers, Bun, Deno. If an argument
 * after the request has `waitUntil`, such as a Worker's context, the runtime is kept alive for work after the answer.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   export const POST = fetchReceiver({ issuer, audience }, async event => queue.push(event))
 */
export const fetchReceiver = (
  ...given: AdapterArguments<Request>
): ((request: Request, ...context: unknown[]) => Promise<Response>) => {
  const receiver = receiverOf(given)
  return async (request, ...context) => {
    const platform = context.find(hasWaitUntil)
    const waitUntil: WaitUntil | undefined = platform && (promise => platform.waitUntil(promise))
    const answer = await receiver.receive({ ...fromFetch(request), request, waitUntil })
    // `connection` belongs to HTTP/1.1 and to the server: a Response may not have it.
    const { connection: _, ...headers } = answer.headers
    return new Response(answer.body, { status: answer.status, headers })
  }
}

const hasWaitUntil = (value: unknown): value is { waitUntil: WaitUntil } =>
  typeof value === 'object' && value !== null && 'waitUntil' in value && typeof value.waitUntil === 'function'
