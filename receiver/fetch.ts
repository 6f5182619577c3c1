import { readFetchBody } from './body.ts'
import { createReceiver, type Handler, type ReceiverOptions } from './receiver.ts'

/**
 * Receives deliveries where requests and responses are those of the Fetch API: Hono, Next.js route handlers, Bun, Deno.
 */
export const fetchReceiver = (
  options: ReceiverOptions,
  handler: Handler,
): ((request: Request) => Promise<Response>) => {
  const receiver = createReceiver(options)
  return async request => {
    const { method, headers } = request
    const body = () => readFetchBody(request)
    const answer = await receiver.receive({ method, authorization: headers.get('authorization'), body }, handler)
    return new Response(answer.body, { status: answer.status, headers: answer.headers })
  }
}
