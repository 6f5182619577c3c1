export type { Jwk } from '../shared/delivery-token.ts'
export type { KnownEvent, TidingsEvent, UnknownEvent } from './event.ts'
export { expressReceiver } from './express.ts'
export { fastifyReceiver } from './fastify.ts'
export type { Answer, FaultCode } from './fault.ts'
export { fetchReceiver } from './fetch.ts'
export type { KeySource } from './keys.ts'
export { koaReceiver } from './koa.ts'
export {
  createReceiver,
  type DeliveryRequest,
  type Handler,
  type Receiver,
  type ReceiverOptions,
  RetryLater,
} from './receiver.ts'
export { type Claim, memoryReplayStore, type ReplayStore } from './replay-store.ts'
