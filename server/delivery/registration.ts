import { setTimeout as sleep } from 'node:timers/promises'
import { notFound, TidingsError } from '../../shared/errors.ts'
import type { WebhookTransport } from '../../shared/vocabulary.ts'
import { type Database, isDuplicate } from '../database/connect.ts'
import type { Change } from '../domain/change.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { WebhookRow } from '../domain/resources.ts'
import { isTaken } from '../domain/webhook-ids.ts'
import { candidateOf, sealCarried } from '../domain/webhook-requests.ts'
import {
  type Changed,
  carriedOnceStored,
  checkWebhookInput,
  findWebhook,
  insertWebhook,
  type Making,
  requireHeadersAnew,
  requireRoom,
  rotateSecret,
  updateWebhook,
  urlToPing,
  type WebhookInput,
  webhookNow,
  withTransport,
} from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import type { AttemptTools } from './attempt.ts'
import type { DeliveryLoop } from './loop.ts'
import { type AnsweredPing, pingBeforeStoring, pingStored, recordAnsweredPing, wayOf } from './ping.ts'
import type { PullPings } from './pull/pings.ts'
import { BEGUN_MS } from './recheck.ts'

// A ping takes seconds, and runs before the transaction that stores the webhook. The rules are applied twice: before
// the ping, and in the transaction on the rows that it locks.

/** The caller who registers, and the tools for it. */
export type Registrant = {
  tools: AttemptTools
  requireHttps: boolean
  token: AccessToken
  webhooksPerToken: number
  loop: DeliveryLoop
  pull: { pings: PullPings }
  database: Database
  /** Runs a change in a transaction that holds the calling token. */
  change<T>(work: (change: Change) => Promise<T>): Promise<T>
  /** The same as `change`, for reads only. */
  look<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** The answer for a webhook, read in the transaction that stored it. */
export type Stored<T> = Changed & { answer: T }
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

const store = async <T>(registrant: Registrant, id: string, given: WebhookInput, read: Read<T>): Promise<Stored<T>> => {
  const making = { sealer: registrant.tools.sealer, candidate: candidateOf(given) }
  let ping: Ping | undefined
  for (let round = 1; ; round++) {
    const seen = await registrant.look(change => look(change, id, given, registrant))
    const input = withTransport(given, { id, seen, issuerUrl: registrant.tools.issuerUrl })
    // Before the ping, which carries them.
    if (seen) requireHeadersAnew(making.sealer, seen, input)
    const url = seen ? urlToPing(seen, input) : input.url!
    if (url !== undefined && url !== ping?.url) {
      const requestSealed = sealCarried(making.sealer, id, carriedOnceStored(making, seen, input))
      const of = { webhookId: id, url, requestSealed, transport: input.transport! }
      ping = { url, answered: await pingInTurn(registrant, of) }
    }
    const stored = await storeAsSeen(registrant, { id, seen, ping, making }, input, read)
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
  { tools, requireHttps, webhooksPerToken }: Registrant,
): Promise<WebhookRow | undefined> => {
  const seen = await findWebhook(trx, token, id)
  withTransport(input, { id, seen, issuerUrl: tools.issuerUrl })
  await checkWebhookInput(trx, token, input, { requireHttps })
  // An id of a webhook out of sight, or of one that is gone and was another's, answers like an unknown one. A webhook
  // that appeared since the lookup comes from
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
  { id, seen, ping, making }: { id: string; seen: WebhookRow | undefined; ping: Ping | undefined; making: Making },
  input: WebhookInput,
  read: Read<T>,
): Promise<Stored<T> | undefined> => {
  try {
    return await change(async within => {
      const changed = seen
        ? await updateWebhook(within, { seen, pinged: ping?.url, ...making }, input)
        : await insertWebhook(within, id, { ...input, url: ping!.url }, { ...making, mostOfToken: webhooksPerToken })
      if (!changed) return undefined
      if (ping) await recordAnsweredPing(within.trx, id, ping.answered)
      return { ...changed, answer: await read(within, await webhookNow(within.trx, id)) }
    })
  } catch (error) {
    // The same upsert was made twice at once: the first stored the webhook, the second changes it.
    if (!seen && isDuplicate(error)) return undefined
    throw error
  }
}

const pingInTurn = (
  { token, tools, loop, pull, look }: Registrant,
  { transport, ...ping }: Parameters<typeof pingBeforeStoring>[1] & { transport: WebhookTransport },
) =>
  loop.pings.run({ tokenId: token.id, webhookId: ping.webhookId }, async () => {
    // The ping may have waited for its turn: check the token again, which may have been revoked.
    await look(async () => {})
    return pingBeforeStoring(tools, ping, wayOf({ transport, accessTokenId: token.id }, pull.pings))
  })

/**
 * Replaces the secret of a webhook. Answers once no process signs without the new one, so that a receiver may go on
 * with it alone.
 */
export const rotateWebhookSecret = async <T>(
  { tools, change }: Pick<Registrant, 'tools' | 'change'>,
  input: { id: string; secret?: string; graceSeconds?: number },
  read: Read<T>,
): Promise<Stored<T>> => {
  const making = { sealer: tools.sealer, candidate: candidateOf(input) }
  const stored = await change(async within => {
    const changed = await rotateSecret(within, making, input)
    return { ...changed, answer: await read(within, await webhookNow(within.trx, input.id)) }
  })
  await sleep(BEGUN_MS)
  return stored
}

/** Pings a stored, active webhook. Resolves with the delivery's id when the attempt has been recorded. */
export const pingWebhook = (
  registrant: Pick<Registrant, 'change' | 'token' | 'loop' | 'database'>,
  id: string,
): Promise<{ deliveryId: string }> =>
  registrant.loop.pings.run({ tokenId: registrant.token.id, webhookId: id }, () => pingStored(registrant, id))
