import { z } from 'zod'
import { type EventPayload, events } from '../shared/events.ts'
import type { EventType } from '../shared/vocabulary.ts'

/** What the body of every delivery says, whatever its event. */
interface Delivered {
  /** UUID of the webhook that it was delivered to. */
  webhookId: string
  /** UUID; the same at every attempt of one delivery. */
  eventId: string
  /** When it happened: ISO 8601 with offset, such as `2026-11-21T00:40:01.123+00:00`. */
  eventTime: string
}

/** An event of a type that this version of Tidings has. `KnownEvent<'token_expired'>` is one of that type. */
export type KnownEvent<Type extends HandledType = HandledType> = {
  [Each in Type]: Delivered & { eventType: Each; payload: EventPayload<Each> }
}[Type]

/** An event of a type that came after this version: `unknownType` is its `eventType` in the body. */
export interface UnknownEvent extends Delivered {
  eventType: 'unknown'
  unknownType: string
  payload: Record<string, unknown>
}

/** An event that a handler is given, told apart by `eventType`. */
export type TidingsEvent = KnownEvent | UnknownEvent

/** Pings carry nothing to handle: they are answered once they are verified. */
type HandledType = Exclude<EventType, 'ping'>

export type Ping = Delivered & { eventType: 'ping' }

const envelope = z.object({
  webhookId: z.string(),
  eventId: z.string(),
  eventType: z.string(),
  eventTime: z.string(),
  payload: z.record(z.string(), z.unknown()),
})

/** The event in a delivery's body, or, in a sentence, why there is none. */
export const readEvent = (body: string): TidingsEvent | Ping | string => {
  const read = envelope.safeParse(JSON.parse(body))
  if (!read.success) return describe(read.error.issues[0]!)
  const { eventType, payload, ...delivered } = read.data
  if (!isKnown(eventType)) return { ...delivered, eventType: 'unknown', unknownType: eventType, payload }
  // A newer sender may add to a payload, and write an id in another
  // form: only what is missing or of another type is a fault.
  const issue = events[eventType].payload.safeParse(payload).error?.issues.find(({ code }) => code === 'invalid_type')
  if (issue) return describe({ ...issue, path: ['payload', ...issue.path] })
  return { ...delivered, eventType, payload } as KnownEvent | Ping
}

const isKnown = (type: string): type is EventType => Object.hasOwn(events, type)

const describe = ({ path, message }: { path: PropertyKey[]; message: string }): string =>
  `The body’s ${path.join('.') || 'content'} is not as it should be: ${message}.`
