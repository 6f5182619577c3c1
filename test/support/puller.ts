import { randomUUID } from 'node:crypto'
import type { TakenDelivery } from '../../server/delivery/pull/pull.ts'
import type { Credentials } from '../../shared/hmac.ts'
import type { TestServer } from './server.ts'

const TAKE = `mutation($webhookId: UUID!, $limit: Int, $waitSeconds: Int) {
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) {
    deliveryId attempt headers body leaseUntil } }`
const ANSWER = `mutation($answers: [DeliveryAnswer!]!) {
  answered: answerDeliveries(answers: $answers) { deliveryId attempt counted reason delivery { id status } } }`
const EXTEND = `mutation($deliveries: [TakenAttempt!]!, $seconds: Int) {
  extended: extendDeliveries(deliveries: $deliveries, seconds: $seconds) { deliveryId attempt leaseUntil } }`
const CREATE = `mutation($id: UUID, $transport: WebhookTransport, $ordering: WebhookOrdering, $status: WebhookStatus,
  $recovery: WebhookRecovery, $events: [EventType!]) {
  upsertWebhook(id: $id, transport: $transport, ordering: $ordering, status: $status, recovery: $recovery,
    events: $events) { id url transport status } }`
/** The scheduler emits others at any time, such as for a token of another test that has expired. */
const EVENTS = ['project_report_quarterly_submitted']

type Registering = { id?: string; ordering?: string; status?: string; recovery?: string }

export type Answering = { status?: number; headers?: object; body?: string }

/** A client that pulls from a server, in the name of a token. */
export const puller = (server: Pick<TestServer, 'graphql'>, as?: Credentials) => {
  const ask = async (document: string, variables: object) => {
    const { data, errors } = await server.graphql(document, variables, as)
    if (errors) throw Object.assign(new Error(errors[0]!.message), errors[0]!.extensions)
    return data
  }
  const take = async (webhookId: string, { limit, waitSeconds }: { limit?: number; waitSeconds?: number } = {}) =>
    (await ask(TAKE, { webhookId, limit, waitSeconds })).taken as TakenDelivery[]
  const answer = async (taken: TakenDelivery[], { status = 200, ...rest }: Answering = {}) => {
    const answers = taken.map(({ deliveryId, attempt }) => ({ deliveryId, attempt, status, ...rest }))
    return (await ask(ANSWER, { answers })).answered as {
      counted: boolean
      reason: string | null
      delivery: { status: string } | null
    }[]
  }
  const upsert = async (input: object) => (await ask(CREATE, input)).upsertWebhook
  return {
    /** What is answered to a document of the test's own; throws an error with the answer's code. */
    ask,
    take,
    answer,
    upsert,
    async extend(taken: TakenDelivery[], seconds?: number) {
      const deliveries = taken.map(({ deliveryId, attempt }) => ({ deliveryId, attempt }))
      const { extended } = await ask(EXTEND, { deliveries, seconds })
      return extended as { leaseUntil: string | null }[]
    },
    /** Registers a pulled webhook: waits for its ping, and answers it. */
    async register({ id = randomUUID(), ...input }: Registering = {}) {
      const pinged = take(id, { waitSeconds: 10 }).then(taken => answer(taken))
      const webhook = await upsert({ id, transport: 'pull', events: EVENTS, ...input })
      await pinged
      return webhook as { id: string; url: string; transport: string; status: string }
    },
  }
}

export type Puller = ReturnType<typeof puller>
