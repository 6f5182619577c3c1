import { type KeptBody, type NodeRequest, readNodeBody } from './body.ts'
import { createReceiver, type Handler, type ReceiverOptions } from './receiver.ts'

/** Of node:http's response, what the receiver needs. */
export interface NodeResponse {
  writeHead(status: number, headers: Record<string, string>): unknown
  end(body: string): unknown
}

/**
 * An Express handler that receives deliveries: `app.post('/hooks', expressReceiver({…}, handler))`. It asks no more of
 * Express than node:http gives, so `createServer(expressReceiver({…}, handler))` works as well.
 */
export const expressReceiver = (
  options: ReceiverOptions,
  handler: Handler,
): ((request: NodeRequest & KeptBody, response: NodeResponse) => Promise<void>) => {
  const receiver = createReceiver(options)
  return async (request, response) => {
    const { method, headers } = request
    const body = () => readNodeBody(request, request)
    const answer = await receiver.receive({ method, authorization: headers.authorization, body }, handler)
    response.writeHead(answer.status, answer.headers)
    response.end(answer.body)
  }
}
