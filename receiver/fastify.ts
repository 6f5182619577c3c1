import { type NodeRequest, readNodeBody } from './body.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/** The part of a Fastify instance that the receiver uses. */
export interface FastifyLike {
  removeAllContentTypeParsers(): void
  addContentTypeParser(contentType: string, parser: () => Promise<void>): unknown
  all(path: string, handler: (request: FastifyRequestLike, reply: FastifyReplyLike) => Promise<unknown>): unknown
}

export interface FastifyRequestLike {
  raw: NodeRequest
}

export interface FastifyReplyLike {
  sent?: boolean
  raw?: { destroyed?: boolean }
  code(status: number): unknown
  headers(headers: Record<string, string>): unknown
}

/**
 * A Fastify plugin that receives deliveries at its prefix.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   app.register(fastifyReceiver({ issuer, audience }, async event => queue.push(event)), { prefix: '/hooks' })
 */
export const fastifyReceiver = <Native extends FastifyRequestLike = FastifyRequestLike>(
  ...given: AdapterArguments<Native>
): ((instance: FastifyLike) => Promise<void>) => {
  const receiver = receiverOf(given)
  return async instance => {
    // Only within this plugin, so that nothing reads the body before the receiver.
    instance.removeAllContentTypeParsers()
    instance.addContentTypeParser('*', async () => {})
    instance.all('/', async (request, reply) => {
      const { raw } = request
      const answer = await receiver.receive({
        method: raw.method,
        authorization: raw.headers.authorization,
        body: () => readNodeBody(raw, {}),
        request: request as Native,
        isAnswered: () => Boolean(reply.sent || reply.raw?.destroyed),
      })
      if (reply.sent) return reply
      reply.code(answer.status)
      reply.headers(answer.headers)
      return answer.body
    })
  }
}
