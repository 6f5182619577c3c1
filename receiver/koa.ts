import { type KeptBody, type NodeRequest, readNodeBody } from './body.ts'
import { createReceiver, type Handler, type ReceiverOptions } from './receiver.ts'

/** Of Koa's context, what the receiver needs. */
export interface KoaContext {
  req: NodeRequest
  request: KeptBody & { method: string }
  status: number
  body: unknown
  set(headers: Record<string, string>): void
}

/**
 * Koa middleware that receives deliveries and answers every
 * request: `router.post('/hooks', koaReceiver({…}, handler))`.
 */
export const koaReceiver = (options: ReceiverOptions, handler: Handler): ((ctx: KoaContext) => Promise<void>) => {
  const receiver = createReceiver(options)
  return async ctx => {
    const { method, headers } = ctx.req
    const body = () => readNodeBody(ctx.req, ctx.request)
    const answer = await receiver.receive({ method, authorization: headers.authorization, body }, handler)
    ctx.status = answer.status
    ctx.set(answer.headers)
    ctx.body = answer.body
  }
}
