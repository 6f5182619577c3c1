import { type KeptBody, type NodeRequest, readNodeBody } from './body.ts'
import { type AdapterArguments, receiverOf } from './receiver.ts'

/** The part of Koa's context that the receiver uses. */
export interface KoaContext {
  req: NodeRequest
  res?: { headersSent?: boolean; destroyed?: boolean }
  request: KeptBody & { method: string }
  status: number
  body: unknown
  set(headers: Record<string, string>): void
}

/**
 * Koa middleware that receives deliveries and answers every request.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   router.post('/hooks', koaReceiver({ issuer, audience }, async event => queue.push(event)))
 */
export const koaReceiver = <Native extends KoaContext = KoaContext>(
  ...given: AdapterArguments<Native>
): ((ctx: Native) => Promise<void>) => {
  const receiver = receiverOf(given)
  return async ctx => {
    const isAnswered = () => Boolean(ctx.res?.headersSent || ctx.res?.destroyed)
    const { method, headers } = ctx.req
    const body = () => readNodeBody(ctx.req, ctx.request)
    const answer = await receiver.receive({
      method,
      authorization: headers.authorization,
      body,
      request: ctx,
      isAnswered,
    })
    if (isAnswered()) return
    ctx.status = answer.status
    ctx.set(answer.headers)
    ctx.body = answer.body
  }
}
