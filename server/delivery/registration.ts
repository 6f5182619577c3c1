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

// A ping takes seconds, and comes before the transaction that stores what it lets in. What may be done is decided
// twice: before the ping, and by the same rules in the transaction, on the rows that it holds.

/** Whoever registers, and what it takes. */
export type Registrant = {
  tools: AttemptTools
  requireHttps: boolean
  token: AccessToken
  webhooksPerToken: number
  loop: DeliveryLoop
  /** Runs a change in a transaction that holds the calling token. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
  /** As `change`, for what only looks. */
  look<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** What a webhook is answered with, read in the transaction that stored it. */
export type Stored<T> = { told: T }
type Read<T> = (change: Change, webhook: WebhookRow) => Promise<T>

/**
 * Stores a webhook, active, once its endpoint has answered a ping with 200; else throws PING_FAILED, and nothing is
 * stored.
 */
export const createWebhook = <T>(registrant: Registrant, input: WebhookInput, read: Read<T>): Promise<Stored<T>> =>
  store(registrant, newId(registrant.tools.clock.now()), input, read)

/**
 * Changes what `input` gives of the webhook with this id, or stores a webhook with it, so that the same call may be
 * made again, or twice at once. A new url, or a return to `active`, must answer a ping with 200 first.
 */
export const upsertWebhook = <T>(
  registrant: Registrant,
  id: string | undefined,
  input: WebhookInput,
  read: Read<T>,
): Promise<Stored<T>> =>
  id === undefined ? createWebhook(registrant, input, read) : store(registrant, id, input, read)

/** A webhook that is changed by others again and again, each time so that it must be pinged anew, is given up. */
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
      throw new TidingsError('CONFLICT', 'The webhook is being changed all the time. Look at it, and try again.', {
        webhookId: id,
        status: seen?.status ?? 'active',
      })
    }
  }
}

type Ping = { url: string; answered: AnsweredPing }

/** The webhook as it is, if there is one, once `input` is known to be one that the token may give. */
const look = async (
  { trx, token }: Change,
  id: string,
  input: WebhookInput,
  { requireHttps, webhooksPerToken }: Registrant,
): Promise<WebhookRow | undefined> => {
  const seen = await findWebhook(trx, token, id)
  if (!seen && input.url === undefined) throw badInput('url', 'is missing; a new webhook needs one')
  await checkWebhookInput(trx, token, input, { requireHttps })
  // An id that is taken by a webhook out of sight answers as one that never was. What has come since it was looked for
  // is of the same upsert, made twice at once.
  if (!seen && (await isTaken(trx, token, id))) {
    const come = await findWebhook(trx, token, id)
    if (!come) throw notFound('webhook', [id])
    return come
  }
  if (!seen) await requireRoom(trx, token, webhooksPerToken)
  return seen
}

/** Undefined, with nothing done, if what is stored by now asks for another look. */
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
    // The same upsert, made twice at once: the first has stored it, and the second changes it.
    if (!seen && isDuplicate(error)) return undefined
    throw error
  }
}

const pingInTurn = ({ token, tools, loop, look }: Registrant, ping: { webhookId: string; url: string }) =>
  loop.pings.run({ tokenId: token.id, webhookId: ping.webhookId }, async () => {
    // It may have waited for its turn: nothing is sent in the name of a token that was revoked meanwhile.
    await look(async () => {})
    return pingBeforeStoring(tools, ping)
  })

/** Pings a stored, active webhook. Resolves with the delivery's id when the attempt has been recorded. */
export const pingWebhook = (
  registrant: Pick<Registrant, 'change' | 'token' | 'loop'>,
  id: string,
): Promise<{ deliveryId: string }> =>
  registrant.loop.pings.run({ tokenId: registrant.token.id, webhookId: id }, () => pingStored(registrant, id))
