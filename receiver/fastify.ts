import { type NodeRequest, readNodeBody } from './body.ts'
import { createReceiver, type Handler, type ReceiverOptions } from './receiver.ts'

/** Of a Fastify instance, what the receiver needs. */
export interface FastifyLike {
  removeAllContentTypeParsers(): void
  addContentTypeParser(contentType: string, parser: () => Promise<void>): unknown
  all(path: string, handler: (request: { raw: NodeRequest }, reply: FastifyReplyLike) => Promise<string>): unknown
}

export interface FastifyReplyLike {
  code(status: number): unknown
  headers(headers: Record<string, string>): unknown
}

/**
 * A Fastify plugin that receives deliveries at its prefix:
 * `app.register(fastifyReceiver({…}, handler), { prefix: '/hooks' })`.
 */
export const fastifyReceiver = (
  options: ReceiverOptions,
  handler: Handler,
): ((instance: FastifyLike) => Promise<void>) => {
  const receiver = createReceiver(options)
  return async instance => {
    // Within this plugin alone, so that nothing reads the body before the receiver.
    instance.removeAllContentTypeParsers()
    instance.addContentTypeParser('*', async () => {})
    instance.all('/', async ({ raw }, reply) => {
      const { method, headers } = raw
      const body = () => readNodeBody(raw, {})
      const answer = await receiver.receive({ method, authorization: headers.authorization, body }, handler)
      reply.code(answer.status)
      reply.headers(answer.headers)
      return answer.body
    })
  }
}
