import { type KeptBody, type NodeRequest, readNodeBody } from './body.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/** The part of node:http's response that the receiver uses. */
export interface NodeResponse {
  headersSent?: boolean
  writableEnded?: boolean
  destroyed?: boolean
  writeHead(status: number, headers: Record<string, string>): unknown
  end(body: string): unknown
  destroy?(): unknown
}

/**
 * An Express handler (4 or 5) that receives deliveries. It takes options and one handler, or a receiver that has its
 * handlers. It uses nothing but node:http, so `createServer(expressReceiver(…))` works too. The handler never rejects.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   app.post('/hooks', expressReceiver({ issuer, audience }, async event => queue.push(event)))
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
      // Something else has written to the response. Without a complete answer the delivery comes again.
      console.error('tidings/receiver: the answer could not be sent:', error)
      response.destroy?.()
    }
  }
}
