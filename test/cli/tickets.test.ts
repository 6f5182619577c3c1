import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import type { Credentials } from '../../shared/hmac.ts'
import { engines } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, type ReceivedRequest, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Tickets of support: "the event did not come". Each true cause is made on a server by its API alone. `why` names it,
// and the commands that it prints, one after the other, end with the event at the receiver.

const home = temporaryFolder()
const APPROVED = 'project_report_quarterly_approved'

for (const engine of engines) {
  describe(`tickets that why solves (${engine})`, { concurrency: 4 }, () => {
    let server: TestServer
    let receiver: Receiver
    let ops: Credentials & { id: string }
    const answers = new Map<string, (request: ReceivedRequest) => Answer>()

    before(async () => {
      receiver = await startReceiver({
        answer: request => answers.get(request.path)?.(request) ?? { status: 200 },
      })
      server = await startTestServer(engine)
      ops = await server.token({ name: 'ops', permissions: ['admin'] })
    })
    after(() => Promise.all([server.stop(), receiver.close()]))

    const asked = async (document: string, variables: object = {}, as: Credentials = ops) => {
      const { data, errors } = await eventually(
        'the server has room',
        () => server.graphql(document, variables, as),
        answer => answer.errors?.[0]?.extensions.code !== 'UNAVAILABLE',
        { everyMs: 100 },
      )
      assert.equal(errors, undefined, JSON.stringify(errors))
      return data
    }
    const explained = async (webhookId: string, eventId: string) =>
      (
        await asked(
          `query ($webhookId: UUID!, $eventId: UUID!) { explainDelivery(webhookId: $webhookId, eventId: $eventId) {
            verdict reasons { code message at } next delivery { id status } } }`,
          { webhookId, eventId },
        )
      ).explainDelivery

    /** An endpoint whose answer can be changed, and a place for an event to happen. */
    const place = async () => {
      const own = await addProject(server.database, { organisation: randomUUID(), project: randomUUID() })
      const path = `/webhook/${randomUUID()}`
      const url = new URL(path, receiver.url).href
      const answer = (given: Answer | ((request: ReceivedRequest) => Answer)): void => {
        answers.set(path, request =>
          request.body?.eventType === 'ping' ? { status: 200 } : typeof given === 'function' ? given(request) : given,
        )
      }
      const webhook = async (input: object = {}, as: Credentials = ops): Promise<string> =>
        (
          await asked(
            `mutation ($url: String, $id: UUID, $events: [EventType!], $organisationIds: [UUID!], $projectIds: [UUID!],
              $status: WebhookStatus, $transport: WebhookTransport, $ordering: WebhookOrdering) {
              upsertWebhook(id: $id, url: $url, events: $events, transport: $transport,
                organisationIds: $organisationIds,
                projectIds: $projectIds, status: $status, ordering: $ordering) { id } }`,
            { ...('id' in input || 'transport' in input ? {} : { url }), ...input },
            as,
          )
        ).upsertWebhook.id
      const happens = async (quarter = '2026-3'): Promise<string> => {
        await asked(
          `mutation ($p: UUID!, $q: String!, $u: UUID!) {
            submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`,
          {
            p: own.projectId,
            q: quarter,
            u: own.userId,
          },
        )
        const { events } = await asked('query ($s: MangoQuery) { events(query: $s) { id } }', {
          s: { selector: { projectId: own.projectId, 'payload.projectReport.quarter': quarter } },
        })
        return events[0].id
      }
      const settles = (webhookId: string, eventId: string) =>
        eventually(
          'its last delivery ends',
          () => explained(webhookId, eventId),
          ({ delivery }) => delivery?.status !== 'pending',
          { everyMs: 100 },
        )
      const other = await addProject(server.database, { organisation: randomUUID(), project: randomUUID() })
      return { ...own, other, url, path, answer, webhook, happens, settles }
    }
    type Place = Awaited<ReturnType<typeof place>>

    type Ticket = {
      cause: string
      make: (at: Place) => Promise<{ webhookId: string; eventId: string }>
      codes: string[]
      says?: RegExp
      /** What somebody does at the endpoint before the commands are run. */
      mended?: (at: Place) => void
    }

    const TICKETS: Ticket[] = [
      {
        cause: 'the webhook asks for another type',
        async make({ webhook, happens }) {
          return { webhookId: await webhook({ events: [APPROVED] }), eventId: await happens() }
        },
        codes: ['type_not_wanted'],
      },
      {
        cause: 'the webhook is of another organisation',
        async make({ webhook, happens, other }) {
          return { webhookId: await webhook({ organisationIds: [other.organisationId] }), eventId: await happens() }
        },
        codes: ['not_chosen'],
      },
      {
        cause: 'the webhook is of another project',
        async make({ webhook, happens, other }) {
          return { webhookId: await webhook({ projectIds: [other.projectId] }), eventId: await happens() }
        },
        codes: ['not_chosen'],
      },
      {
        cause: 'three at once: another type, another organisation, disabled',
        async make({ webhook, happens, other }) {
          const webhookId = await webhook({ events: [APPROVED], organisationIds: [other.organisationId] })
          await webhook({ id: webhookId, status: 'disabled' })
          return { webhookId, eventId: await happens() }
        },
        codes: ['type_not_wanted', 'not_chosen', 'webhook_disabled'],
        says: /disabled by “ops”/,
      },
      {
        cause: 'the project was moved to another organisation',
        async make({ webhook, happens, organisationId, other, projectId }) {
          const webhookId = await webhook({ organisationIds: [organisationId] })
          await happens('2026-2')
          await asked(
            'mutation ($id: UUID!, $o: UUID!) { upsertProject(id: $id, organisationId: $o, name: "moved") { id } }',
            {
              id: projectId,
              o: other.organisationId,
            },
          )
          return { webhookId, eventId: await happens() }
        },
        codes: ['not_chosen', 'project_moved'],
      },
      {
        cause: 'the webhook was disabled then, and is active since',
        async make({ webhook, happens }) {
          const webhookId = await webhook()
          await webhook({ id: webhookId, status: 'disabled' })
          const eventId = await happens()
          await webhook({ id: webhookId, status: 'active' })
          return { webhookId, eventId }
        },
        codes: ['disabled_then'],
        says: /the webhook was disabled by “ops”, until \S+ by “ops”/,
      },
      {
        cause: 'the webhook was inactive then, because of a 429, and is active since',
        async make({ webhook, happens, answer, settles }) {
          const webhookId = await webhook()
          answer({ status: 429 })
          await settles(webhookId, await happens('2026-2'))
          await eventually(
            'the webhook is inactive',
            () => asked(`{ webhooks(query: { selector: { id: "${webhookId}" } }) { status } }`),
            ({ webhooks: [found] }) => found.status === 'inactive',
          )
          const eventId = await happens()
          answer({ status: 200 })
          await webhook({ id: webhookId, status: 'active' })
          return { webhookId, eventId }
        },
        codes: ['inactive_then'],
        says: /had answered 429 without a time/,
      },
      {
        cause: 'its endpoint answered 429 without a time',
        async make({ webhook, happens, answer, settles }) {
          const webhookId = await webhook()
          answer({ status: 429 })
          const eventId = await happens()
          await settles(webhookId, eventId)
          await eventually(
            'the webhook is inactive',
            () => explained(webhookId, eventId),
            ({ reasons }) => reasons.length === 2,
          )
          return { webhookId, eventId }
        },
        codes: ['cancelled', 'webhook_inactive'],
        mended: ({ answer }) => answer({ status: 200 }),
      },
      {
        cause: 'the webhook asked for another type then',
        async make({ webhook, happens }) {
          const webhookId = await webhook({ events: [APPROVED] })
          const eventId = await happens()
          await webhook({ id: webhookId, events: [] })
          return { webhookId, eventId }
        },
        codes: ['type_not_wanted_then'],
      },
      {
        cause: 'the webhook was of another organisation then',
        async make({ webhook, happens, other, organisationId }) {
          const webhookId = await webhook({ organisationIds: [other.organisationId] })
          const eventId = await happens()
          await webhook({ id: webhookId, organisationIds: [organisationId] })
          return { webhookId, eventId }
        },
        codes: ['not_chosen_then'],
      },
      {
        cause: 'two at once then: disabled, and of another project',
        async make({ webhook, happens, other }) {
          const webhookId = await webhook({ projectIds: [other.projectId] })
          await webhook({ id: webhookId, status: 'disabled' })
          const eventId = await happens()
          await webhook({ id: webhookId, status: 'active', projectIds: [] })
          return { webhookId, eventId }
        },
        codes: ['disabled_then', 'not_chosen_then'],
      },
      {
        cause: 'somebody disabled the webhook while it was retried',
        async make({ webhook, happens, answer }) {
          const webhookId = await webhook()
          answer({ status: 429, headers: { 'retry-after': '600' } })
          const eventId = await happens()
          await eventually(
            'it waits',
            () => explained(webhookId, eventId),
            ({ reasons: [first] }) => first.code === 'throttled',
          )
          await webhook({ id: webhookId, status: 'disabled' })
          return { webhookId, eventId }
        },
        codes: ['cancelled', 'webhook_disabled'],
        says: /the webhook was disabled by “ops”/,
        mended: ({ answer }) => answer({ status: 200 }),
      },
      {
        cause: 'the receiver refused it',
        async make({ webhook, happens, answer, settles }) {
          const webhookId = await webhook()
          answer({ status: 422 })
          const eventId = await happens()
          await settles(webhookId, eventId)
          return { webhookId, eventId }
        },
        codes: ['refused'],
        mended: ({ answer }) => answer({ status: 204 }),
      },
      {
        cause: 'the receiver did not accept its token',
        async make({ webhook, happens, answer, settles }) {
          const webhookId = await webhook()
          answer({ status: 401 })
          const eventId = await happens()
          await settles(webhookId, eventId)
          return { webhookId, eventId }
        },
        codes: ['token_refused'],
        mended: ({ answer }) => answer({ status: 204 }),
      },
      {
        cause: 'the connection broke until the last retry',
        async make({ webhook, happens, answer, settles }) {
          const webhookId = await webhook()
          answer('reset')
          const eventId = await happens()
          await settles(webhookId, eventId)
          return { webhookId, eventId }
        },
        codes: ['retries_exhausted'],
        says: /connection reset: The connection was closed/,
        mended: ({ answer }) => answer({ status: 204 }),
      },
      {
        cause: 'it was delivered to the URL of then',
        async make({ webhook, happens, settles, url }) {
          const webhookId = await webhook()
          const eventId = await happens()
          await settles(webhookId, eventId)
          await webhook({ id: webhookId, url: `${url}/new` })
          return { webhookId, eventId }
        },
        codes: ['acknowledged', 'former_url'],
        says: /was sent to http/,
      },
      {
        cause: 'events about webhooks have to be named',
        async make({ webhook, happens, answer, settles, url }) {
          const webhookId = await webhook({ url: `${url}/notices` })
          const about = await webhook()
          answer({ status: 429 })
          await settles(about, await happens())
          const selector = { type: 'webhook_inactive', 'payload.webhook.id': about }
          const { events } = await eventually(
            'the notice is there',
            () => asked('query ($s: MangoQuery) { events(query: $s) { id } }', { s: { selector } }),
            found => found.events.length > 0,
          )
          return { webhookId, eventId: events[0].id }
        },
        codes: ['type_not_wanted'],
      },
    ]

    /** Runs a command of an explanation. */
    const run = (command: string) => {
      const asks = /^tidings (webhooks (recover|update)|deliveries redeliver)/.test(command)
      return tidings([...command.split(' ').slice(1), ...(asks ? ['--yes'] : [])], {
        home,
        env: { TIDINGS_URL: server.url, TIDINGS_API_KEY: ops.apiKey, TIDINGS_API_SECRET: ops.apiSecret },
      })
    }

    for (const { cause, make, codes, says, mended } of TICKETS) {
      it(`${cause}: ${codes.join(', ')}`, async () => {
        const at = await place()
        const { webhookId, eventId } = await make(at)
        const found = await explained(webhookId, eventId)
        assert.deepEqual(
          found.reasons.map(({ code }: { code: string }) => code),
          codes,
          JSON.stringify(found, null, 1),
        )
        if (says) assert.match(found.reasons.map(({ message }: { message: string }) => message).join('\n'), says)
        mended?.(at)
        let now = found
        const hasArrived = () =>
          now.verdict === 'delivered' && (found.verdict !== 'delivered' || now.delivery.id !== found.delivery.id)
        for (let steps = 0; !hasArrived(); steps++) {
          assert.ok(steps < 5 && now.next !== null, `no command mends it: ${JSON.stringify(now)}`)
          const { code, stderr } = await run(now.next)
          assert.equal(code, 0, `${now.next}: ${stderr}`)
          now = await at.settles(webhookId, eventId)
        }
        const arrived = receiver.requests.some(({ body }) => body.eventId === now.delivery.id)
        assert.ok(arrived, 'the receiver has it')
      })
    }
  })
}
