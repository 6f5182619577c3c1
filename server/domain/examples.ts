import { badInput } from '../../shared/errors.ts'
import { events, exampleIds } from '../../shared/events.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import type { Change } from './change.ts'
import { enqueue } from './deliveries.ts'
import { recordOnDemand } from './events.ts'
import { lockActive } from './webhooks.ts'

type Json = Record<string, unknown>

const MOST_BYTES = 8_192
const fixed = new Set<unknown>(Object.values(exampleIds))

/**
 * Queues an example event for one webhook, whatever its filters are, and returns the delivery's id. From then on it is
 * a delivery like any other. Throws NOT_FOUND, CONFLICT or BAD_USER_INPUT.
 *
 * @param given.payload values that replace those of the example's payload, except ids
 */
export const sendExample = async (
  change: Change,
  given: { webhookId: string; eventType: EventType; payload?: unknown },
): Promise<string> => {
  const { webhookId, eventType: type } = given
  const payload = examplePayload(type, given.payload)
  const webhook = await lockActive(change, webhookId)
  const now = change.now()
  const id = await recordOnDemand(change.trx, now, { type, payload, isExample: true })
  const [deliveryId] = await enqueue(change.trx, [{ event: { id, type }, webhook }], now)
  return deliveryId!
}

const examplePayload = (type: EventType, given: unknown = {}): Json => {
  const { payload, example } = events[type]
  const merged = merge(example, given, '')
  const checked = payload.safeParse(merged)
  const [issue] = checked.error?.issues ?? []
  if (issue) {
    const at = issue.path.length > 0 ? `${issue.path.join('.')}: ` : ''
    throw badInput('payload', `${at}${issue.message}; the example is ${JSON.stringify(example)}`)
  }
  if (Buffer.byteLength(JSON.stringify(merged)) > MOST_BYTES) {
    throw badInput('payload', `results in more than ${MOST_BYTES} bytes of JSON`)
  }
  return merged
}

/** Replaces values of the example by the given ones, except ids, by which a receiver recognises an example. */
const merge = (example: Json, given: unknown, at: string): Json => {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    const what = at === '' ? 'must' : `${at.slice(0, -1)} must`
    throw badInput('payload', `${what} be an object, with values that replace those of ${JSON.stringify(example)}`)
  }
  const changed = Object.entries(given).map(([name, value]) => {
    const was = Object.hasOwn(example, name) ? example[name] : undefined
    if (fixed.has(was) && value !== was) {
      throw badInput('payload', `${at}${name} cannot be replaced: receivers recognise an example by it`)
    }
    const isObject = typeof was === 'object' && was !== null && !Array.isArray(was)
    return [name, isObject ? merge(was as Json, value, `${at}${name}.`) : value]
  })
  return { ...example, ...Object.fromEntries(changed) }
}
