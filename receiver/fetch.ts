import { type AdapterArguments, receiverOf } from './receiver.ts'
import { fromFetch } from './verify.ts'

type WaitUntil = (promise: Promise<unknown>) => void

/**
 * Receives deliveries where requests and responses are those of the Fetch API: Hono,
 * Next.js route handlers, Workers, Bun, Deno. Of what follows the request, an object with
 * `waitUntil`, such as a Worker's context, keeps the runtime at it after the answer.
 */
export const fetchReceiver = (
  ...given: AdapterArguments<Request>
): ((request: Request, ...context: unknown[]) => Promise<Response>) => {
  const receiver = receiverOf(given)
  return async (request, ...context) => {
    const platform = context.find(hasWaitUntil)
    const waitUntil: WaitUntil | undefined = platform && (promise => platform.waitUntil(promise))
    const answer = await receiver.receive({ ...fromFetch(request), request, waitUntil })
    // `connection` is HTTP/1.1's and the server's own: a Response may not have it.
    const { connection: _, ...headers } = answer.headers
    return new Response(answer.body, { status: answer.status, headers })
  }
}

const hasWaitUntil = (value: unknown): value is { waitUntil: WaitUntil } =>
  typeof value === 'object' && value !== null && 'waitUntil' in value && typeof value.waitUntil === 'function'
