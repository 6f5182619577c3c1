import { enginesHere } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { APPROVED, type Place, play, type Ticket } from './ticket-desk.ts'

// What was asked for, by whom, and when: why there is no delivery, or not the one that was meant.

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
    async make({ webhook, happens, organisationId, other, projectId, desk }) {
      const webhookId = await webhook({ organisationIds: [organisationId] })
      await happens('2026-2')
      await desk.asked(
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
    async make({ webhook, happens, answer, settles, isInactive }) {
      const webhookId = await webhook()
      answer({ status: 429 })
      await settles(webhookId, await happens('2026-2'))
      await isInactive(webhookId)
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
    async make({ webhook, happens, answer, settles, isInactive }) {
      const webhookId = await webhook()
      answer({ status: 429 })
      const eventId = await happens()
      await settles(webhookId, eventId)
      await isInactive(webhookId)
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
    async make({ webhook, happens, answer, explainedAs, settles }) {
      const webhookId = await webhook()
      answer({ status: 429, headers: { 'retry-after': '600' } })
      const eventId = await happens()
      await explainedAs('throttled', { webhookId, eventId })
      await webhook({ id: webhookId, status: 'disabled' })
      await settles(webhookId, eventId)
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
    async make({ webhook, happens, answer, settles, url, desk }) {
      const webhookId = await webhook({ url: `${url}/notices`, organisationIds: [] })
      const about = await webhook()
      answer({ status: 429 })
      await settles(about, await happens())
      return { webhookId, eventId: await noticeOf(desk, about) }
    },
    codes: ['type_not_wanted'],
  },
  {
    cause: 'two at once: another project, of another organisation, and a filter of both',
    async make({ webhook, happens, other }) {
      const webhookId = await webhook({ organisationIds: [other.organisationId], projectIds: [other.projectId] })
      return { webhookId, eventId: await happens() }
    },
    codes: ['not_chosen'],
    says: /restricted to 1 organisation and 1 project/,
  },
  {
    cause: 'the webhook was deleted',
    async make({ webhook, happens, desk }) {
      const webhookId = await webhook({ events: ['project_report_quarterly_submitted'] })
      await webhook({ id: webhookId, status: 'disabled' })
      await desk.asked('mutation ($id: UUID!) { deleteWebhook(id: $id) }', { id: webhookId })
      return { webhookId, eventId: await happens() }
    },
    codes: ['webhook_deleted'],
    ends: 'next event',
  },
  {
    cause: 'the access token of the webhook does not see the organisation',
    async make({ webhook, happens, other, desk }) {
      const permissions = ['read', 'webhooks'] as const
      const limited = await desk.server.token({
        permissions: [...permissions],
        organisationIds: [other.organisationId],
      })
      return { webhookId: await webhook({ organisationIds: [] }, limited), eventId: await happens() }
    },
    codes: ['out_of_sight', 'project_out_of_sight'],
    ends: 'next event',
  },
  {
    cause: 'its project moved out of the sight of the webhook while it was retried',
    async make({ webhook, happens, answer, explainedAs, organisationId, projectId, other, desk }) {
      const permissions = ['read', 'webhooks'] as const
      const limited = await desk.server.token({ permissions: [...permissions], organisationIds: [organisationId] })
      const webhookId = await webhook({ organisationIds: [] }, limited)
      // It fails when the project has moved, so that a retry is left by then.
      const moved = Promise.withResolvers<void>()
      answer(() => moved.promise.then(() => ({ status: 503 })))
      const eventId = await happens()
      await explainedAs('under_way', { webhookId, eventId })
      await desk.asked(
        'mutation ($id: UUID!, $o: UUID!) { upsertProject(id: $id, organisationId: $o, name: "moved") { id } }',
        { id: projectId, o: other.organisationId },
      )
      moved.resolve()
      await explainedAs('project_out_of_sight', { webhookId, eventId })
      return { webhookId, eventId }
    },
    codes: ['project_out_of_sight'],
    mended: ({ answer }) => answer({ status: 200 }),
    ends: 'next event',
  },
  ...(['revoked', 'expired'] as const).map(
    (end): Ticket => ({
      cause: `the access token of the webhook is ${end}, which is not why, and the receiver refused it`,
      async make({ webhook, happens, answer, settles, organisationId, desk }) {
        const permissions = ['read', 'webhooks'] as const
        const owner = await desk.server.token({ permissions: [...permissions], organisationIds: [organisationId] })
        const webhookId = await webhook({ organisationIds: [] }, owner)
        if (end === 'revoked') await desk.asked(`mutation { revokeAccessToken(id: "${owner.id}") { id } }`)
        else await expire(desk, owner.id)
        answer({ status: 422 })
        const eventId = await happens()
        await settles(webhookId, eventId)
        return { webhookId, eventId }
      },
      codes: ['refused'],
      mended: ({ answer }) => answer({ status: 200 }),
    }),
  ),
  {
    cause: 'two at once: disabled then, and the access token that did so is revoked since',
    async make({ webhook, happens, organisationId, desk }) {
      const permissions = ['read', 'webhooks'] as const
      const owner = await desk.server.token({ permissions: [...permissions], organisationIds: [organisationId] })
      const webhookId = await webhook({ organisationIds: [] }, owner)
      await webhook({ id: webhookId, status: 'disabled' }, owner)
      const eventId = await happens()
      await desk.asked(`mutation { revokeAccessToken(id: "${owner.id}") { id } }`)
      await webhook({ id: webhookId, status: 'active' })
      return { webhookId, eventId }
    },
    codes: ['disabled_then'],
  },
  {
    cause: 'three at once: created after the event, of another organisation, for another type',
    async make({ webhook, happens, other }) {
      const eventId = await happens()
      return { webhookId: await webhook({ events: [APPROVED], organisationIds: [other.organisationId] }), eventId }
    },
    codes: ['created_after', 'type_not_wanted', 'not_chosen'],
    ends: 'told',
  },
  {
    cause: 'the webhook was created after the event',
    async make({ webhook, happens }) {
      const eventId = await happens()
      return { webhookId: await webhook(), eventId }
    },
    codes: ['created_after'],
    ends: 'told',
  },
  {
    cause: 'the event is about the webhook itself',
    async make({ webhook, ended, desk }) {
      const { webhookId } = await ended({ status: 429 }, { organisationIds: [] })
      await webhook({ id: webhookId, events: ['webhook_inactive', 'project_report_quarterly_submitted'] })
      return { webhookId, eventId: await noticeOf(desk, webhookId) }
    },
    codes: ['about_itself'],
    ends: 'told',
  },
  {
    cause: 'the event is about a webhook that the access token of this one does not see',
    async make({ webhook, ended, url, organisationId, desk }) {
      const permissions = ['read', 'webhooks'] as const
      const limited = await desk.server.token({ permissions: [...permissions], organisationIds: [organisationId] })
      const own = { url: `${url}/own`, organisationIds: [], events: ['webhook_inactive'] }
      const webhookId = await webhook(own, limited)
      const { webhookId: about } = await ended({ status: 429 }, { organisationIds: [] })
      return { webhookId, eventId: await noticeOf(desk, about) }
    },
    codes: ['subject_out_of_sight'],
    ends: 'told',
  },
  {
    cause: 'an example was sent to another webhook',
    async make({ webhook, url, desk }) {
      const [webhookId, asked] = [await webhook({ url: `${url}/live` }), await webhook()]
      const { sendExample } = await desk.asked(
        'mutation ($id: UUID!, $type: EventType!) { sendExample(webhookId: $id, eventType: $type) { eventId } }',
        { id: asked, type: APPROVED },
      )
      return { webhookId, eventId: sendExample.eventId }
    },
    codes: ['on_demand'],
    ends: 'told',
  },
]

const expire = ({ server }: Place['desk'], id: string) =>
  server.database
    .knex('access_tokens')
    .where({ id })
    .update({ expires_at: Date.now() - 1 })

/** The event that a webhook has become inactive. */
const noticeOf = async (desk: Place['desk'], about: string): Promise<string> => {
  const selector = { type: 'webhook_inactive', 'payload.webhook.id': about }
  const { events } = await eventually(
    'the notice is there',
    () => desk.asked('query ($s: MangoQuery) { events(query: $s) { id } }', { s: { selector } }),
    found => found.events.length > 0,
  )
  return events[0].id
}

for (const engine of enginesHere()) play('tickets that why solves', engine, TICKETS)
