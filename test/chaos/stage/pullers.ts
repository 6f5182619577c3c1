import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { startPulling, type TakenDelivery } from '../../../receiver/pulling.ts'
import { TAKEN_MS } from '../../../server/delivery/pull/taken.ts'
import { type Client, type Credentials, clientOf } from './client.ts'
import { BEGUN_AT } from './endpoint.ts'
import type { Server } from './processes.ts'

// The way of a delivery turned round: where a case registers an endpoint, clients pull for it, pass on to the endpoint
// what they take, and answer as it does. So a case about endpoints is one about clients as well.

/** As long as an endpoint has for its answer. */
const ENDPOINT_MS = 15_000
/** As long as the kit waits for an answer of the server. */
const SERVER_MS = 45_000
const CLIENTS = 2
const AT_ONCE = 100

const MAKE = `mutation ($id: UUID!, $events: [EventType!], $organisationIds: [UUID!], $projectIds: [UUID!]) {
  upsertWebhook(
    id: $id, transport: pull, events: $events, organisationIds: $organisationIds, projectIds: $projectIds) { id } }`
const REDIRECT = `mutation ($id: UUID!, $url: String!, $organisationIds: [UUID!]) {
  upsertWebhook(id: $id, transport: push, url: $url, organisationIds: $organisationIds) {
    id url status events organisationIds } }`

export type Pullers = {
  /** A client that has webhooks pulled that it is told to create, and pushed when it gives them another URL. */
  clientOf(client: Client, credentials: Credentials, documents: { create: string; upsert: string }): Client
  stop(): void
}

/** @param servers those that a load balancer would know */
export const createPullers = (servers: () => Server[]): Pullers => {
  const pulled = new Set<string>()
  const stopping: (() => unknown)[] = []
  let turn = 0

  /** Asks one server after the other, as through a load balancer. */
  const askAs = (credentials: Credentials) => async (document: string, variables: object, signal: AbortSignal) => {
    const up = servers().filter(server => !server.hasEnded())
    const server = up[turn++ % up.length]
    if (!server) throw new Error('No server is there.')
    const left = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(new Error('stopped')), { once: true })
    })
    const late = wait(SERVER_MS, undefined, { ref: false }).then(() => {
      throw new Error('The server did not answer.')
    })
    const answered = clientOf(server.url, credentials)(document, variables)
    const { data, code, message } = await Promise.race([answered, late, left])
    if (code !== undefined) throw Object.assign(new Error(message), { code })
    return data
  }

  const pull = (webhookId: string, url: string, credentials: Credentials): void => {
    pulled.add(webhookId)
    for (let n = 0; n < CLIENTS; n++) {
      const pulling = startPulling({
        ask: askAs(credentials),
        webhookId,
        concurrency: AT_ONCE,
        answer: taken => passOn(url, taken),
        onError: () => {},
      })
      pulling.ended.catch(() => {})
      stopping.push(pulling.stop)
    }
  }

  return {
    clientOf: (client, credentials, { create, upsert }) => {
      return async (document, variables = {}, headers) => {
        const { id, url } = variables as { id?: string; url?: string }
        if (document === create && url !== undefined) {
          const id = randomUUID()
          pull(id, url, credentials)
          return client(MAKE, { ...variables, id }, headers)
        }
        if (document === upsert && url !== undefined && pulled.has(id!)) return client(REDIRECT, variables, headers)
        return client(document, variables, headers)
      }
    },
    stop() {
      for (const stop of stopping) stop()
    },
  }
}

const passOn = async (url: string, { headers: signed, body, leaseUntil }: TakenDelivery) => {
  const headers = { ...signed, [BEGUN_AT]: String(Date.parse(leaseUntil) - TAKEN_MS) }

  try {
    const signal = AbortSignal.timeout(ENDPOINT_MS)
    const response = await fetch(url, { method: 'POST', headers, body, redirect: 'manual', signal })
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers),
      body: await response.text(),
    }
  } catch {
    return undefined
  }
}
