import { badInput, notFound, TidingsError } from '../../shared/errors.ts'
import { isDuplicate } from '../database/connect.ts'
import type { Change } from '../domain/change.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { WebhookRow } from '../domain/resources.ts'
import {
  checkWebhookInput,
  findWebhook,
  insertWebhook,
  isTaken,
  requireRoom,
  updateWebhook,
  urlToPing,
  type WebhookInput,
  webhookNow,
} from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import type { AttemptTools } from './attempt.ts'
import type { DeliveryLoop } from './loop.ts'
import { type AnsweredPing, pingBeforeStoring, pingStored, recordAnsweredPing } from './ping.ts'

// A ping takes seconds, and runs before the transaction that stores the webhook. The rules are applied twice: before
// the ping, and in the transaction on the rows that it locks.

/** The caller who registers, and the tools for it. */
export type Registrant = {
  tools: AttemptTools
  requireHttps: boolean
  token: AccessToken
  webhooksPerToken: number
  loop: DeliveryLoop
  /** Runs a change in a transaction that holds the calling token. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
  /** The same as `change`, for reads only. */
  look<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** The answer for a webhook, read in the transaction that stored it. */
export type Stored<T> = { told: T }
type Read<T> = (change: Change, webhook: WebhookRow) => Promise<T>

/**
 * Stores a webhook as active after its endpoint has answered a ping with 200. Otherwise throws PING_FAILED, and stores
 * nothing.
 */
export const createWebhook = <T>(registrant: Registrant, input: WebhookInput, read: Read<T>): Promise<Stored<T>> =>
  store(registrant, newId(registrant.tools.clock.now()), input, read)

/**
 * Changes the webhook with this id as `input` says, or stores a webhook with the id, so that the call may be repeated
 * or made twice at once. A new URL, or a webhook made active again, must answer a ping with 200 first. Throws
 * PING_FAILED, NOT_FOUND or CONFLICT.
 */
export const upsertWebhook = <T>(
  registrant: Registrant,
  id: string | undefined,
  input: WebhookInput,
  read: Read<T>,
): Promise<Stored<T>> =>
  id === undefined ? createWebhook(registrant, input, read) : store(registrant, id, input, read)

/** How often a webhook that others keep changing is pinged again before the call gives up. */
const MOST_ROUNDS = 4

const store = async <T>(registrant: Registrant, id: string, input: WebhookInput, read: Read<T>): Promise<Stored<T>> => {
  let ping: Ping | undefined
  for (let round = 1; ; round++) {
    const seen = await registrant.look(change => look(change, id, input, registrant))
    const url = seen ? urlToPing(seen, input) : input.url!
    if (url !== undefined && url !== ping?.url) {
      ping = { url, answered: await pingInTurn(registrant, { webhookId: id, url }) }
    }
    const stored = await storeAsSeen(registrant, { id, seen, ping }, input, read)
    if (stored) return stored
    if (round === MOST_ROUNDS) {
      throw new TidingsError('CONFLICT', 'The webhook keeps changing. Look at it, and try again.', {
        webhookId: id,
        status: seen?.status ?? 'active',
      })
    }
  }
}

type Ping = { url: string; answered: AnsweredPing }

/** Checks that the token may give `input`, and returns the present webhook, if there is one. */
const look = async (
  { trx, token }: Change,
  id: string,
  input: WebhookInput,
  { requireHttps, webhooksPerToken }: Registrant,
): Promise<WebhookRow | undefined> => {
  const seen = await findWebhook(trx, token, id)
  if (!seen && input.url === undefined) throw badInput('url', 'is missing; a new webhook needs one')
  await checkWebhookInput(trx, token, input, { requireHttps })
  // An id of a webhook out of sight answers like an unknown one. A webhook that appeared since the lookup comes from
  // the same upsert, made twice at once.
  if (!seen && (await isTaken(trx, token, id))) {
    const come = await findWebhook(trx, token, id)
    if (!come) throw notFound('webhook', [id])
    return come
  }
  if (!seen) await requireRoom(trx, token, webhooksPerToken)
  return seen
}

/** Undefined, with nothing done, if the stored webhook has changed and has to be looked at again. */
const storeAsSeen = async <T>(
  { change, webhooksPerToken }: Registrant,
  { id, seen, ping }: { id: string; seen: WebhookRow | undefined; ping: Ping | undefined },
  input: WebhookInput,
  read: Read<T>,
): Promise<Stored<T> | undefined> => {
  try {
    return await change(async held => {
      if (!seen) await insertWebhook(held, id, { ...input, url: ping!.url }, webhooksPerToken)
      else if (!(await updateWebhook(held, { seen, pinged: ping?.url }, input))) return undefined
      if (ping) await recordAnsweredPing(held.trx, id, ping.answered)
      return { told: await read(held, await webhookNow(held.trx, id)) }
    })
  } catch (error) {
    // The same upsert was made twice at once: the first stored the webhook, the second changes it.
    if (!seen && isDuplicate(error)) return undefined
    throw error
  }
}

const pingInTurn = ({ token, tools, loop, look }: Registrant, ping: { webhookId: string; url: string }) =>
  loop.pings.run({ tokenId: token.id, webhookId: ping.webhookId }, async () => {
    // The ping may have waited for its turn: check the token again, which may have been revoked.
    await look(async () => {})
    return pingBeforeStoring(tools, ping)
  })

/** Pings a stored, active webhook. Resolves with the delivery's id when the attempt has been recorded. */
export const pingWebhook = (
  registrant: Pick<Registrant, 'change' | 'token' | 'loop'>,
  id: string,
): Promise<{ deliveryId: string }> =>
  registrant.loop.pings.run({ tokenId: registrant.token.id, webhookId: id }, () => pingStored(registrant, id))
