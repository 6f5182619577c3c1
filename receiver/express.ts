import { type KeptBody, type NodeRequest, readNodeBody } from './body.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/** Of node:http's response, what the receiver needs. */
export interface NodeResponse {
  headersSent?: boolean
  writableEnded?: boolean
  destroyed?: boolean
  writeHead(status: number, headers: Record<string, string>): unknown
  end(body: string): unknown
  destroy?(): unknown
}

/**
 * An Express handler that receives deliveries: `app.post('/hooks', expressReceiver({…}, handler))`, or of a receiver
 * that has its handlers. It asks no more of Express, 4 or 5, than node:http gives, so
 * `createServer(expressReceiver({…}, handler))` works as well. Never rejects.
 */
export const expressReceiver = <Native extends NodeRequest & KeptBody = NodeRequest & KeptBody>(
  ...given: AdapterArguments<Native>
): ((request: Native, response: NodeResponse) => Promise<void>) => {
  const receiver = receiverOf(given)
  return async (request, response) => {
    const isAnswered = () => Boolean(response.headersSent || response.writableEnded || response.destroyed)
    const { method, headers } = request
    const body = () => readNodeBody(request, request)
    const answer = await receiver.receive({ method, authorization: headers.authorization, body, request, isAnswered })
    if (isAnswered()) return
    try {
      response.writeHead(answer.status, answer.headers)
      response.end(answer.body)
    } catch (error) {
      // Something else has a hand in the response: without an answer the delivery comes again.
      console.error('tidings/receiver: the answer could not be sent:', error)
      response.destroy?.()
    }
  }
}
