export type { Jwk } from '../shared/delivery-token.ts'
export type { KeptBody, NodeRequest } from './body.ts'
export type { HandledType, KnownEvent, Ping, TidingsEvent, UnknownEvent } from './event.ts'
export { expressReceiver, type NodeResponse } from './express.ts'
export { type FastifyLike, type FastifyReplyLike, type FastifyRequestLike, fastifyReceiver } from './fastify.ts'
export { type Answer, Fault, type FaultCode, type FaultDetails } from './fault.ts'
export { fetchReceiver } from './fetch.ts'
export type { Handler, HandlerContext } from './handler.ts'
export type { KeySource } from './keys.ts'
export { type KoaContext, koaReceiver } from './koa.ts'
export { type LambdaUrlEvent, type LambdaUrlResult, lambdaReceiver } from './lambda.ts'
export { learnedWebhook } from './learned-webhook.ts'
export type { Handled, ReceiverOptions, Refusal, VerifyOptions } from './options.ts'
export type { Payloads } from './payloads.ts'
export { type PullOptions, pullDeliveries } from './pull.ts'
export type { Pulling, TakenDelivery } from './pulling.ts'
export {
  type AdapterArguments,
  type CompleteReceiver,
  createReceiver,
  type Receiver,
} from './receiver.ts'
export { type Claim, memoryReplayStore, type ReplayStore } from './replay-store.ts'
export { RetryLater } from './retry-later.ts'
export { type DeliveryRequest, type DeliveryToken, type VerifiedDelivery, verifyDelivery } from './verify.ts'
