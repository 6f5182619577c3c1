import { isObject } from '../shared/token-format.ts'
import { type Payloads, payloadShapes, type Shape } from './payloads.ts'

/** The members that the body of every delivery has. */
interface Delivered {
  /**
   * The event's own id, from the token's `sub`: the same over retries, redeliveries, recoveries and webhooks. A server
   * older than that claim does not send it; then this is the delivery's `eventId`.
   */
  id: string
  /** UUID of the webhook that it was delivered to. */
  webhookId: string
  /** UUID; the same at every attempt of one delivery. */
  eventId: string
  /** When it happened: ISO 8601 with offset, such as `2026-11-21T00:40:01.123+00:00`. */
  eventTime: string
}

/** The event types that reach a handler. The receiver itself answers a `ping` once it is verified. */
export type HandledType = Exclude<keyof Payloads, 'ping'>

/** An event of a type that this version of the kit knows. `KnownEvent<'token_expired'>` is an event of that type. */
export type KnownEvent<Type extends HandledType = HandledType> = {
  [Each in Type]: Delivered & { eventType: Each; payload: Payloads[Each] }
}[Type]

/** An event that is newer than this version of the kit: its type or its payload is unknown. */
export interface UnknownEvent extends Delivered {
  eventType: 'unknown'
  /** The `eventType` in the body. */
  unknownType: string
  /** Only for a known type: what in the payload differs from that type. */
  misfit?: string
  payload: Record<string, unknown>
}

/** The event that a handler receives: a union that `eventType` discriminates. */
export type TidingsEvent = KnownEvent | UnknownEvent

export type Ping = Delivered & { eventType: 'ping'; payload: Record<string, unknown> }

/** The event types that may reach a handler. */
export const handledTypes = Object.keys(payloadShapes).filter(type => type !== 'ping') as HandledType[]

const TEXTS = ['webhookId', 'eventId', 'eventType', 'eventTime'] as const

/** The event in a delivery's body, or a sentence that says why there is none. */
export const readEvent = (body: Record<string, unknown>, id: string | undefined): TidingsEvent | Ping | string => {
  const { webhookId, eventId, eventType, eventTime, payload } = body
  for (const name of TEXTS)
    if (typeof body[name] !== 'string') return `The body’s ${name} is not as it should be: a text.`
  if (!isObject(payload)) return 'The body’s payload is not as it should be: an object.'
  const delivered = { id: id ?? eventId, webhookId, eventId, eventTime } as Delivered
  const type = eventType as string
  if (type === 'ping') return { ...delivered, eventType: type, payload }
  const misfit = isKnown(type) ? misfitOf(payloadShapes[type], payload, 'payload') : undefined
  if (isKnown(type) && misfit === undefined) return { ...delivered, eventType: type, payload } as unknown as KnownEvent
  return { ...delivered, eventType: 'unknown', unknownType: type, ...(misfit && { misfit }), payload }
}

const isKnown = (type: string): type is HandledType => Object.hasOwn(payloadShapes, type)

/**
 * What does not fit the shape. A newer sender may add members, so only a missing member or one of another type counts.
 */
const misfitOf = (shape: Shape, value: unknown, path: string): string | undefined => {
  if (shape.anyOf) {
    const misfits = shape.anyOf.map(each => misfitOf(each, value, path))
    return misfits.includes(undefined) ? undefined : misfits[0]
  }
  const found = typeName(value)
  const fits = shape.type === undefined || shape.type === found || (shape.type === 'integer' && Number.isInteger(value))
  if (!fits) return `${path} is not of type ${shape.type}, but ${found}`
  if (!isObject(value)) return undefined
  return firstMisfit(
    Object.entries(shape.properties ?? {}).map(([name, member]) => {
      if (Object.hasOwn(value, name)) return misfitOf(member, value[name], `${path}.${name}`)
      return shape.required?.includes(name) ? `${path}.${name} is missing` : undefined
    }),
  )
}

const firstMisfit = (misfits: (string | undefined)[]): string | undefined => misfits.find(it => it !== undefined)

const typeName = (value: unknown): string => (value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value)
