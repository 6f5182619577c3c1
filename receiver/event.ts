import { isObject } from '../shared/token-format.ts'
import { type Payloads, payloadShapes, type Shape } from './payloads.ts'

/** What the body of every delivery says, whatever its event. */
interface Delivered {
  /**
   * The event's own id, from the token's `sub`: the same over retries, redeliveries, recoveries and webhooks. A server
   * older than that claim does not tell it: then it is the delivery's, `eventId`.
   */
  id: string
  /** UUID of the webhook that it was delivered to. */
  webhookId: string
  /** UUID; the same at every attempt of one delivery. */
  eventId: string
  /** When it happened: ISO 8601 with offset, such as `2026-11-21T00:40:01.123+00:00`. */
  eventTime: string
}

/** Pings carry nothing to handle: they are answered once they are verified. */
export type HandledType = Exclude<keyof Payloads, 'ping'>

/** An event of a type that this version of the kit has. `KnownEvent<'token_expired'>` is one of that type. */
export type KnownEvent<Type extends HandledType = HandledType> = {
  [Each in Type]: Delivered & { eventType: Each; payload: Payloads[Each] }
}[Type]

/** An event that came after this version of the kit: of a type, or with a payload, that it does not have. */
export interface UnknownEvent extends Delivered {
  eventType: 'unknown'
  /** Its `eventType` in the body. */
  unknownType: string
  /** Of a type that the kit has: what of the payload is not as that type has it. */
  misfit?: string
  payload: Record<string, unknown>
}

/** An event that a handler is given, told apart by `eventType`. */
export type TidingsEvent = KnownEvent | UnknownEvent

export type Ping = Delivered & { eventType: 'ping'; payload: Record<string, unknown> }

/** The types that a handler may be given. */
export const handledTypes = Object.keys(payloadShapes).filter(type => type !== 'ping') as HandledType[]

/** The event in a delivery's body, or, in a sentence, why there is none. */
export const readEvent = (body: Record<string, unknown>, id: string | undefined): TidingsEvent | Ping | string => {
  const { webhookId, eventId, eventType, eventTime, payload } = body
  for (const [name, value] of Object.entries({ webhookId, eventId, eventType, eventTime })) {
    if (typeof value !== 'string') return `The body’s ${name} is not as it should be: a text.`
  }
  if (!isObject(payload)) return 'The body’s payload is not as it should be: an object.'
  const delivered = { id: id ?? eventId, webhookId, eventId, eventTime } as Delivered
  const type = eventType as string
  if (type === 'ping') return { ...delivered, eventType: type, payload }
  const misfit = isKnown(type) ? misfitOf(payloadShapes[type], payload, 'payload') : undefined
  if (isKnown(type) && misfit === undefined) return { ...delivered, eventType: type, payload } as unknown as KnownEvent
  return { ...delivered, eventType: 'unknown', unknownType: type, ...(misfit && { misfit }), payload }
}

const isKnown = (type: string): type is HandledType => Object.hasOwn(payloadShapes, type)

/** A newer sender may add to a payload: only what is missing or of another type does not fit. */
const misfitOf = (shape: Shape, value: unknown, path: string): string | undefined => {
  if (shape.anyOf) {
    const misfits = shape.anyOf.map(each => misfitOf(each, value, path))
    return misfits.includes(undefined) ? undefined : misfits[0]
  }
  const found = typeName(value)
  const fits = shape.type === undefined || shape.type === found || (shape.type === 'integer' && Number.isInteger(value))
  if (!fits) return `${path} is not of type ${shape.type}, but ${found}`
  if (Array.isArray(value))
    return firstMisfit(value.map((item, i) => misfitOf(shape.items ?? {}, item, `${path}[${i}]`)))
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
