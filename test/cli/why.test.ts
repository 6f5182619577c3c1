import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import pc from 'picocolors'
import { describeOrganisationWhy } from '../../cli/why/organisation.ts'
import { insertMany } from '../../server/database/connect.ts'
import { NEVER } from '../../server/domain/lines.ts'
import { newId } from '../../server/ids.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook, type GivenWebhook } from '../support/webhooks.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Each cause for which an event does not arrive is made on a server. The explanation names it, and its next command
// runs.

const home = temporaryFolder()
const NOW = Date.now()
const HOUR = 3_600_000
const LONG_AGO = NOW - 48 * HOUR

let server: TestServer
let receiver: Receiver
let admin: Credentials & { id: string }
let acme: { organisationId: string; projectId: string }
let bolt: { organisationId: string; projectId: string }
/** A token that sees Acme alone. */
let limited: Credentials & { id: string }

before(async () => {
  receiver = await startReceiver()
  server = await startTestServer('sqlite', { env: { TIDINGS_ROLES: 'api' } })
  admin = await server.token({ permissions: ['admin'] })
  acme = await addProject(server.database, { organisation: 'Acme' })
  bolt = await addProject(server.database, { organisation: 'Bolt', project: 'Dam' })
  limited = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [acme.organisationId] })
  await aSender(server)
})
after(() => Promise.all([server.stop(), receiver.close()]))

/** The record of a process that sends, which this test has none of. */
const aSender = ({ database }: TestServer) =>
  insertMany(database.knex, 'processes', [
    {
      id: randomUUID(),
      host: 'h',
      pid: 1,
      version: '0',
      roles: 'delivery',
      master_keys: '',
      started_at: NOW,
      seen_at: NOW + 24 * HOUR,
    },
  ])

const run = (args: string[], as: Credentials = admin) =>
  tidings(args, {
    home,
    env: { TIDINGS_URL: server.url, TIDINGS_API_KEY: as.apiKey, TIDINGS_API_SECRET: as.apiSecret },
  })

const webhook = (given: Partial<GivenWebhook> = {}, more: object = {}): Promise<string> =>
  addWebhook(server.database.knex, { accessTokenId: admin.id, url: receiver.url, createdAt: LONG_AGO, ...given }).then(
    async id => {
      if (Object.keys(more).length > 0) await server.database.knex('webhooks').where({ id }).update(more)
      return id
    },
  )

const event = async (given: object = {}): Promise<string> => {
  const id = newId(NOW - HOUR)
  await insertMany(server.database.knex, 'events', [
    {
      id,
      type: 'project_report_quarterly_submitted',
      organisation_id: acme.organisationId,
      project_id: acme.projectId,
      payload: '{"projectReport":{"id":"r"}}',
      created_at: NOW - HOUR,
      ...given,
    },
  ])
  return id
}

type Tried = { code?: number; failure?: string }

/** A delivery of the event with attempts of these answers. */
const delivery = async (
  webhookId: string,
  eventId: string,
  { status, tried = [], queue, ...more }: { status: string; tried?: Tried[]; queue?: object } & Record<string, unknown>,
): Promise<string> => {
  const id = newId(NOW - HOUR)
  const { knex } = server.database
  const isPending = status === 'pending'
  await insertMany(knex, 'deliveries', [
    {
      ...{ id, event_id: eventId, webhook_id: webhookId, event_type: 'project_report_quarterly_submitted', status },
      attempt_count: tried.length,
      created_at: NOW - HOUR,
      finished_at: isPending ? null : NOW - HOUR / 2,
      next_attempt_at: isPending ? NOW + HOUR : null,
      ...more,
    },
  ])
  const attempts = tried.map(({ code, failure }, index) => ({
    ...{ delivery_id: id, number: index + 1, started_at: NOW - HOUR + index, duration_ms: 5 },
    ...{ status_code: code ?? null, failure: failure ?? null },
  }))
  if (attempts.length > 0) await insertMany(knex, 'attempts', attempts)
  if (isPending) {
    const row = { delivery_id: id, event_id: eventId, webhook_id: webhookId, due_at: NOW + HOUR, attempt: tried.length }
    await insertMany(knex, 'delivery_queue', [{ ...row, ...queue }])
  }
  return id
}

/** The words of a command, with the answer to its question. */
const asTyped = (command: string): string[] => {
  const asks = /^tidings (webhooks (recover|update)|deliveries redeliver)/.test(command)
  return [...command.split(' ').slice(1), ...(asks ? ['--yes'] : [])]
}

const automatic = { recovery: 'automatic' }

/** A delivery to a webhook that heals itself, with what automatic recovery has noted. */
const healing =
  (
    given: Parameters<typeof delivery>[2],
    noted: object = {},
    { hook = {}, again }: { hook?: Partial<GivenWebhook>; again?: Parameters<typeof delivery>[2] } = {},
  ): Case['make'] =>
  async () => {
    const [webhookId, eventId] = [await webhook(hook, automatic), await event()]
    await delivery(webhookId, eventId, given)
    if (again) await delivery(webhookId, eventId, again)
    const row = { webhook_id: webhookId, missed_since: NOW - HOUR, began_at: NOW - HOUR, due_at: NOW + HOUR }
    await insertMany(server.database.knex, 'webhook_recoveries', [{ ...row, ...noted }])
    return { webhookId, eventId }
  }

type Case = {
  cause: string
  make: () => Promise<{ webhookId: string; eventId: string }>
  verdict: string
  codes: string[]
  /** The next command, without the program and the ids. */
  next: RegExp | null
}

const sent =
  (given: Parameters<typeof delivery>[2], hook: Partial<GivenWebhook> = {}, more: object = {}): Case['make'] =>
  async () => {
    const [webhookId, eventId] = [await webhook(hook, more), await event()]
    await delivery(webhookId, eventId, given)
    return { webhookId, eventId }
  }

const never =
  (
    hook: Partial<GivenWebhook> | (() => Partial<GivenWebhook>),
    of: object | (() => object) = {},
    more: object = {},
  ): Case['make'] =>
  async () => ({
    webhookId: await webhook(typeof hook === 'function' ? hook() : hook, more),
    eventId: await event(typeof of === 'function' ? of() : of),
  })

const REDELIVER = /^deliveries redeliver/
const ENABLE = /^webhooks enable/
const CREATE = /^webhooks create \S+ --events \S+ --organisation \S+$/
const RECOVER = /^webhooks recover \S+ --since/
const failed = (code: number, times: number): Tried[] => Array.from({ length: times }, () => ({ code }))

const CASES: Case[] = [
  {
    cause: 'it arrived, and the receiver has lost it',
    make: sent({ status: 'delivered', tried: [{ code: 200 }] }),
    ...{ verdict: 'delivered', codes: ['acknowledged'], next: REDELIVER },
  },
  {
    cause: 'it arrived at the second attempt',
    make: sent({ status: 'delivered', tried: [{ failure: 'timeout' }, { code: 204 }] }),
    ...{ verdict: 'delivered', codes: ['acknowledged'], next: REDELIVER },
  },
  {
    cause: 'the receiver had handled it, and answered too late',
    make: sent({ status: 'rejected', handled_before: 1, tried: [{ failure: 'timeout' }, { code: 401 }] }),
    ...{ verdict: 'delivered', codes: ['handled_before'], next: null },
  },
  {
    cause: 'the receiver refuses its token',
    make: sent({ status: 'rejected', tried: [{ code: 401 }] }),
    ...{ verdict: 'failed', codes: ['token_refused'], next: REDELIVER },
  },
  {
    cause: 'the receiver refuses the event',
    make: sent({ status: 'rejected', tried: [{ code: 422 }] }),
    ...{ verdict: 'failed', codes: ['refused'], next: REDELIVER },
  },
  {
    cause: 'there is nothing at its path',
    make: sent({ status: 'rejected', tried: [{ code: 404 }] }),
    ...{ verdict: 'failed', codes: ['refused'], next: REDELIVER },
  },
  {
    cause: 'the endpoint answered 500 until the last retry',
    make: sent({ status: 'dropped', tried: failed(500, 11) }),
    ...{ verdict: 'failed', codes: ['retries_exhausted'], next: REDELIVER },
  },
  {
    cause: 'nobody listened until the last retry',
    make: sent({ status: 'dropped', tried: Array.from({ length: 11 }, () => ({ failure: 'connection_refused' })) }),
    ...{ verdict: 'failed', codes: ['retries_exhausted'], next: REDELIVER },
  },
  {
    cause: 'the endpoint asked to wait for three days',
    make: sent({ status: 'dropped', tried: failed(429, 3) }),
    ...{ verdict: 'failed', codes: ['throttled_too_long'], next: REDELIVER },
  },
  {
    cause: 'it was refused, and the webhook is disabled since',
    make: sent({ status: 'rejected', tried: [{ code: 400 }] }, { status: 'disabled' }),
    ...{ verdict: 'failed', codes: ['refused', 'webhook_disabled'], next: ENABLE },
  },
  {
    cause: 'the webhook was disabled before it was sent',
    make: sent({ status: 'cancelled' }, { status: 'disabled' }),
    ...{ verdict: 'cancelled', codes: ['cancelled', 'webhook_disabled'], next: ENABLE },
  },
  {
    cause: 'the webhook became inactive: 429 without a time',
    make: sent({ status: 'cancelled', tried: failed(429, 1) }, { status: 'inactive', statusReason: 'It said 429.' }),
    ...{ verdict: 'cancelled', codes: ['cancelled', 'webhook_inactive'], next: ENABLE },
  },
  {
    cause: 'it was cancelled, and the webhook is active again',
    make: sent({ status: 'cancelled' }),
    ...{ verdict: 'cancelled', codes: ['cancelled'], next: RECOVER },
  },
  {
    cause: 'it was cancelled, and the webhook is deleted',
    make: sent({ status: 'cancelled' }, { status: 'disabled' }, { deleted_at: NOW }),
    ...{ verdict: 'cancelled', codes: ['cancelled', 'webhook_deleted'], next: /^webhooks create/ },
  },
  {
    cause: 'its next retry follows',
    make: sent({ status: 'pending', tried: failed(503, 2) }),
    ...{ verdict: 'waiting', codes: ['failing', 'waits_for_retry'], next: /^webhooks ping/ },
  },
  {
    cause: 'the endpoint asked to wait',
    make: sent({ status: 'pending', tried: failed(429, 1) }, {}, { held_until: NOW + HOUR }),
    ...{ verdict: 'waiting', codes: ['throttled', 'failing'], next: null },
  },
  {
    cause: 'it is being sent',
    make: sent({ status: 'pending', queue: { lease: newId(NOW), due_at: NOW + HOUR } }),
    ...{ verdict: 'waiting', codes: ['under_way'], next: null },
  },
  {
    cause: 'it is queued',
    make: sent({ status: 'pending', queue: { due_at: NOW + HOUR } }),
    ...{ verdict: 'waiting', codes: ['queued'], next: null },
  },
  {
    cause: 'the process that was to send it has died',
    make: sent({ status: 'pending', queue: { lease: newId(NOW - HOUR), due_at: NOW - HOUR / 2 } }),
    ...{ verdict: 'waiting', codes: ['late'], next: /^doctor/ },
  },
  {
    cause: 'the webhook was disabled a moment ago, which has not cancelled it yet',
    make: sent({ status: 'pending' }, { status: 'disabled' }),
    ...{ verdict: 'waiting', codes: ['webhook_disabled'], next: ENABLE },
  },
  {
    cause: 'more is due than may be sent',
    make: sent({ status: 'pending', queue: { due_at: NOW - HOUR } }),
    ...{ verdict: 'waiting', codes: ['late'], next: /^doctor/ },
  },
  {
    cause: 'the delivery before it in the order of its project has not ended',
    make: async () => {
      const webhookId = await webhook({ ordering: 'project' })
      const [first, eventId] = [await event(), await event()]
      const [ahead, id] = [
        await delivery(webhookId, first, { status: 'pending', tried: failed(500, 1) }),
        await delivery(webhookId, eventId, { status: 'pending', next_attempt_at: null, queue: { due_at: NEVER } }),
      ]
      const line = randomUUID()
      const row = { line, event_at: NOW - HOUR }
      await insertMany(server.database.knex, 'ordered_deliveries', [
        { ...row, delivery_id: ahead, event_id: first, waits: 0 },
        { ...row, delivery_id: id, event_id: eventId, waits: 1 },
      ])
      return { webhookId, eventId }
    },
    ...{ verdict: 'waiting', codes: ['waits_for_turn'], next: /^why \S+ \S+$/ },
  },
  {
    cause: 'no client takes it',
    make: sent({ status: 'pending' }, {}, { transport: 'pull' }),
    ...{ verdict: 'waiting', codes: ['waits_for_puller'], next: /^deliveries take/ },
  },
  {
    cause: 'the webhook asks for other types',
    make: never({ events: ['token_expired'] }),
    ...{
      verdict: 'not_sent',
      codes: ['type_not_wanted'],
      next: /^webhooks update \S+ --events token_expired,project_/,
    },
  },
  {
    cause: 'the webhook is restricted to another organisation',
    make: never(() => ({ organisationIds: [bolt.organisationId] })),
    ...{ verdict: 'not_sent', codes: ['not_chosen'], next: /^webhooks update \S+( --organisation \S+){2}$/ },
  },
  {
    cause: 'the event is of several organisations, of which the webhook names none',
    make: async () => {
      const eventId = await event({ organisation_id: null, project_id: null })
      const others = [await addProject(server.database), await addProject(server.database)]
      const of = others.map(({ organisationId }) => ({ event_id: eventId, organisation_id: organisationId }))
      await insertMany(server.database.knex, 'event_organisations', of)
      return { webhookId: await webhook({ organisationIds: [bolt.organisationId] }), eventId }
    },
    ...{ verdict: 'not_sent', codes: ['not_chosen'], next: /^webhooks show/ },
  },
  {
    cause: 'the webhook is restricted to another project',
    make: never(() => ({ projectIds: [bolt.projectId] })),
    ...{ verdict: 'not_sent', codes: ['not_chosen'], next: /^webhooks update \S+( --project \S+){2}$/ },
  },
  {
    cause: 'the webhook chose others then, of which not all were kept',
    make: async () => {
      const webhookId = await webhook({ projectIds: [acme.projectId] })
      const lists = { organisation_ids: '"too long"', project_ids: JSON.stringify([bolt.projectId]) }
      const version = { webhook_id: webhookId, until_at: NOW - HOUR / 2, status: 'active', ...lists }
      await insertMany(server.database.knex, 'webhook_versions', [version])
      return { webhookId, eventId: await event() }
    },
    ...{ verdict: 'not_sent', codes: ['not_active_then'], next: RECOVER },
  },
  {
    cause: 'the webhook named another organisation then, and the project of the event already',
    make: async () => {
      const { organisationId, projectId } = await addProject(server.database)
      const webhookId = await webhook({ projectIds: [projectId] })
      const lists = { organisation_ids: JSON.stringify([bolt.organisationId]) }
      const version = { webhook_id: webhookId, until_at: NOW - HOUR / 2, status: 'active', ...lists }
      await insertMany(server.database.knex, 'webhook_versions', [version])
      return { webhookId, eventId: await event({ organisation_id: organisationId, project_id: projectId }) }
    },
    ...{ verdict: 'not_sent', codes: ['not_active_then'], next: RECOVER },
  },
  {
    cause: 'several at once: another type, another organisation, and disabled',
    make: never(() => ({ events: ['token_expired'], organisationIds: [bolt.organisationId], status: 'disabled' })),
    ...{
      verdict: 'not_sent',
      codes: ['type_not_wanted', 'not_chosen', 'webhook_disabled'],
      next: /^webhooks update \S+ --events/,
    },
  },
  {
    cause: 'the token of the webhook does not see the organisation',
    make: never(
      () => ({ accessTokenId: limited.id }),
      () => ({ organisation_id: bolt.organisationId, project_id: bolt.projectId }),
    ),
    ...{ verdict: 'not_sent', codes: ['out_of_sight', 'project_out_of_sight'], next: CREATE },
  },
  {
    cause: 'the project has moved out of the sight of the token of the webhook',
    make: never(
      () => ({ accessTokenId: limited.id }),
      () => ({ project_id: bolt.projectId }),
    ),
    ...{
      verdict: 'not_sent',
      codes: ['project_out_of_sight'],
      next: /^webhooks create \S+ --events \S+ --project \S+$/,
    },
  },
  {
    cause: 'it was cancelled when the token lost sight of it',
    make: async () => {
      const webhookId = await webhook({ accessTokenId: limited.id })
      const eventId = await event({ organisation_id: bolt.organisationId, project_id: bolt.projectId })
      await delivery(webhookId, eventId, { status: 'cancelled' })
      return { webhookId, eventId }
    },
    ...{ verdict: 'cancelled', codes: ['out_of_sight', 'project_out_of_sight'], next: CREATE },
  },
  {
    cause: 'the webhook was created after the event',
    make: never({ createdAt: NOW }),
    ...{ verdict: 'not_sent', codes: ['created_after'], next: /^events show/ },
  },
  {
    cause: 'the webhook is disabled, and was then',
    make: never({ status: 'disabled' }),
    ...{ verdict: 'not_sent', codes: ['webhook_disabled'], next: ENABLE },
  },
  {
    cause: 'the webhook was not active then',
    make: never({}),
    ...{ verdict: 'not_sent', codes: ['not_active_then'], next: RECOVER },
  },
  {
    cause: 'the webhook is deleted',
    make: never({ status: 'disabled' }, {}, { deleted_at: NOW }),
    ...{ verdict: 'not_sent', codes: ['webhook_deleted'], next: /^webhooks create/ },
  },
  {
    cause: 'the webhook is deleted that asked for one type',
    make: never({ events: ['token_expired'] }, {}, { deleted_at: NOW }),
    ...{ verdict: 'not_sent', codes: ['webhook_deleted'], next: /^webhooks create \S+ --events token_expired$/ },
  },
  {
    cause: 'a ping goes to the webhook that it was asked for',
    make: never({}, { type: 'ping', organisation_id: null, project_id: null, payload: '{}' }),
    ...{ verdict: 'not_sent', codes: ['on_demand'], next: /^webhooks ping/ },
  },
  {
    cause: 'an example goes to the webhook that it was asked for',
    make: never({}, { example: 1, organisation_id: null, project_id: null }),
    ...{ verdict: 'not_sent', codes: ['on_demand'], next: /^trigger/ },
  },
  {
    cause: 'a webhook hears nothing of itself',
    make: async () => {
      const webhookId = await webhook({ events: ['delivery_dropped'] })
      return { webhookId, eventId: await event({ type: 'delivery_dropped', about_webhook_id: webhookId }) }
    },
    ...{ verdict: 'not_sent', codes: ['about_itself'], next: null },
  },
  {
    cause: 'events about webhooks have to be named',
    make: async () => {
      const other = await webhook()
      return { webhookId: await webhook(), eventId: await event({ type: 'webhook_inactive', about_webhook_id: other }) }
    },
    ...{
      verdict: 'not_sent',
      codes: ['type_not_wanted'],
      next: /^webhooks update \S+ --events project_.*,token_expired,webhook_inactive$/,
    },
  },
  {
    cause: 'it was dropped, and is sent again by itself once the endpoint answers a ping',
    make: healing({ status: 'dropped', tried: failed(500, 11) }),
    ...{ verdict: 'waiting', codes: ['retries_exhausted', 'heals'], next: /^webhooks ping/ },
  },
  {
    cause: 'it was cancelled after the first miss of a webhook that heals itself',
    make: healing({ status: 'cancelled' }),
    ...{ verdict: 'waiting', codes: ['cancelled', 'heals'], next: /^webhooks ping/ },
  },
  {
    cause: 'the endpoint has answered the ping, and what was missed is being queued',
    make: healing({ status: 'dropped', tried: failed(500, 11) }, { answered_at: NOW - 1_000 }),
    ...{ verdict: 'waiting', codes: ['retries_exhausted', 'heals'], next: null },
  },
  {
    cause: 'it was dropped before the first miss that heals',
    make: healing({ status: 'dropped', tried: failed(500, 11) }, { missed_since: NOW - HOUR + 1 }),
    ...{ verdict: 'failed', codes: ['retries_exhausted'], next: REDELIVER },
  },
  {
    cause: 'it was dropped again while the rest of what was missed is being queued',
    make: healing(
      { status: 'dropped', tried: failed(500, 11) },
      { answered_at: NOW - 2_000, again_since: NOW - HOUR },
      { again: { status: 'dropped', tried: failed(500, 11), created_at: NOW - 1_500 } },
    ),
    ...{ verdict: 'waiting', codes: ['retries_exhausted', 'heals', 'sent_again'], next: null },
  },
  {
    cause: 'automatic recovery has given up after seven days',
    make: healing({ status: 'dropped', tried: failed(500, 11) }, { given_up_at: NOW - 1_000 }),
    ...{ verdict: 'failed', codes: ['retries_exhausted', 'healing_given_up'], next: RECOVER },
  },
  {
    cause: 'it would heal, but the webhook is disabled',
    make: healing({ status: 'dropped', tried: failed(500, 11) }, {}, { hook: { status: 'disabled' } }),
    ...{ verdict: 'failed', codes: ['retries_exhausted', 'webhook_disabled', 'heals'], next: ENABLE },
  },
  {
    cause: 'it arrived after automatic recovery had queued it again',
    make: healing(
      { status: 'dropped', tried: failed(500, 11) },
      { answered_at: NOW - 2_000, recovered_at: NOW - 1_000 },
      { again: { status: 'delivered', tried: [{ code: 200 }], created_at: NOW - 1_500 } },
    ),
    ...{ verdict: 'delivered', codes: ['acknowledged', 'healed', 'sent_again'], next: REDELIVER },
  },
  {
    cause: 'it happened when the endpoint answered the ping, and arrived',
    make: healing({ status: 'delivered', tried: [{ code: 200 }] }, { answered_at: NOW - HOUR }),
    ...{ verdict: 'delivered', codes: ['acknowledged'], next: REDELIVER },
  },
  {
    cause: 'it was queued again in the moment when the endpoint answered the ping, and arrived',
    make: healing(
      { status: 'dropped', tried: failed(500, 11) },
      { answered_at: NOW - 2_000 },
      { again: { status: 'delivered', tried: [{ code: 200 }], created_at: NOW - 2_000 } },
    ),
    ...{ verdict: 'delivered', codes: ['acknowledged', 'healed', 'sent_again'], next: REDELIVER },
  },
  {
    cause: 'it was sent again, and was refused again',
    make: async () => {
      const [webhookId, eventId] = [await webhook(), await event()]
      await delivery(webhookId, eventId, { status: 'dropped', tried: failed(500, 11) })
      await delivery(webhookId, eventId, { status: 'rejected', tried: [{ code: 403 }], created_at: NOW - HOUR / 2 })
      return { webhookId, eventId }
    },
    ...{ verdict: 'failed', codes: ['refused', 'sent_again'], next: REDELIVER },
  },
]

const explain = async ({ webhookId, eventId }: { webhookId: string; eventId: string }) => {
  const { data, errors } = await server.graphql(
    `{ explainDelivery(webhookId: "${webhookId}", eventId: "${eventId}") {
      verdict reasons { code message at } next delivery { id } } }`,
    {},
    admin,
  )
  assert.equal(errors, undefined, JSON.stringify(errors))
  return data.explainDelivery
}

describe('why an event did not go to a webhook', { concurrency: 3 }, () => {
  for (const { cause, make, verdict, codes, next } of CASES) {
    it(`${cause}: ${codes.join(', ')}`, async () => {
      const { webhookId, eventId } = await make()
      const explained = await explain({ webhookId, eventId })
      assert.equal(explained.verdict, verdict, JSON.stringify(explained))
      assert.deepEqual(
        explained.reasons.map(({ code }: { code: string }) => code),
        codes,
      )
      for (const { message } of explained.reasons) assert.match(message, /^[A-Z].*\.$/)
      if (next === null) return assert.equal(explained.next, null)
      assert.match(explained.next, /^tidings /)
      const line = explained.next.slice('tidings '.length)
      assert.match(line, next)
      if (/^(doctor|deliveries take)/.test(line)) return
      const { code, stderr } = await run(asTyped(explained.next))
      assert.equal(code, 0, `${line}: ${stderr}`)
    })
  }

  it('says which change of a webhook cancelled a delivery, not what was changed right after it', async () => {
    const { webhookId, eventId } = await sent({ status: 'cancelled' }, { status: 'disabled' })()
    const versions = [
      { status: 'active', until_at: NOW - HOUR / 2 },
      { status: 'inactive', until_at: NOW - HOUR / 2 + 500 },
    ]
    const kept = versions.map(version => ({ webhook_id: webhookId, ...version }))
    await insertMany(server.database.knex, 'webhook_versions', kept)
    const [{ message }] = (await explain({ webhookId, eventId })).reasons
    assert.match(message, /^It was cancelled before it was acknowledged: the webhook became inactive,/)
  })

  it('names what the webhook asks for, where that is another type', async () => {
    const notice = { type: 'delivery_dropped', about_webhook_id: await webhook() }
    for (const [events, of, words] of [
      [['token_expired'], {}, 'asks for token_expired; the event is project_report_quarterly_submitted.'],
      [[], notice, 'asks for all types but those about webhooks, which must be named; the event is delivery_dropped.'],
    ] as const) {
      const [{ message }] = (await explain(await never({ events: [...events] }, of)())).reasons
      assert.ok(message.includes(words), message)
    }
  })

  it('names the organisation to which the project of an event has moved, or from which', async () => {
    const [own, other] = [await addProject(server.database), await addProject(server.database)]
    const of = { organisation_id: own.organisationId, project_id: own.projectId }
    const ids = await never({ organisationIds: [bolt.organisationId] }, of)()
    const lastMessage = async (): Promise<string> => (await explain(ids)).reasons.at(-1).message
    await event({ ...of, organisation_id: other.organisationId })
    assert.ok((await lastMessage()).endsWith(`: another event of it is of organisation ${other.organisationId}.`))
    await server.database.knex('projects').where({ id: own.projectId }).update({ organisation_id: bolt.organisationId })
    assert.ok((await lastMessage()).endsWith(`: it is now of organisation ${bolt.organisationId}.`))
  })

  it('names the access token that does not see the organisation or the project of the event', async () => {
    const ofBolt = { organisation_id: bolt.organisationId, project_id: bolt.projectId }
    const { reasons } = await explain(await never({ accessTokenId: limited.id }, ofBolt)())
    assert.equal(reasons.length, 2)
    for (const { message } of reasons) assert.ok(message.includes(`(${limited.id})`), message)
  })
})

describe('tidings why', () => {
  it('says of a webhook and an event, or a delivery of it, what the server says', async () => {
    const [webhookId, eventId] = [await webhook(), await event()]
    const id = await delivery(webhookId, eventId, { status: 'rejected', tried: [{ code: 422 }] })
    for (const named of [eventId, id]) {
      const { code, stdout, stderr } = await run(['why', webhookId, named, '--output', 'table'])
      assert.equal(code, 0, stderr)
      assert.match(stdout, /^It did not arrive: it was sent and failed\.\n– The endpoint answered 422/)
      assert.match(stdout, new RegExp(`Next: .*tidings deliveries redeliver ${id}`))
    }
    const { reasons, next } = JSON.parse((await run(['why', webhookId, eventId, '--output', 'json'])).stdout)
    assert.equal(reasons[0].code, 'refused')
    assert.equal(next, `tidings deliveries redeliver ${id}`)
  })

  it('does not know what the token does not see', async () => {
    const hidden = await webhook({ organisationIds: [bolt.organisationId] })
    const shown = await webhook({ accessTokenId: limited.id })
    const elsewhere = await event({ organisation_id: bolt.organisationId, project_id: bolt.projectId })
    for (const [webhookId, eventId] of [
      [hidden, await event()],
      [shown, elsewhere],
      [randomUUID(), await event()],
    ]) {
      const { errors } = await server.graphql(
        `{ explainDelivery(webhookId: "${webhookId}", eventId: "${eventId}") { verdict } }`,
        {},
        limited,
      )
      assert.equal(errors![0]!.extensions.code, 'NOT_FOUND')
    }
    assert.equal((await run(['why', hidden, elsewhere], limited)).code, 3)
    assert.equal((await run(['why', 'nobody'], limited)).code, 3)
  })

  it('tells nothing of the organisations and projects that the token does not see', async () => {
    const named = { organisationIds: [bolt.organisationId], projectIds: [bolt.projectId] }
    const [webhookId, eventId] = [await webhook({ accessTokenId: limited.id, ...named }), await event()]
    const { stdout } = await run(['why', webhookId, eventId, '--output', 'json'], limited)
    const { reasons, next } = JSON.parse(stdout)
    assert.match(reasons[0].message, /restricted to others that are out of your sight; the event/)
    assert.equal(next, `tidings webhooks show ${webhookId}`)
  })

  it('counts what was recovered or sent again since as not lost', async () => {
    const webhookId = await webhook()
    const at = (minutes: number) => ({ created_at: NOW - minutes * 60_000 })
    const [arrived, waits, lost, handled] = [await event(), await event(), await event(), await event()]
    for (const [number, eventId] of [arrived, waits, lost].entries())
      await delivery(webhookId, eventId, { status: 'dropped', tried: failed(500, 11), ...at(50 + number) })
    await delivery(webhookId, handled, { status: 'rejected', handled_before: 1, tried: failed(401, 2), ...at(49) })
    await delivery(webhookId, waits, { status: 'pending', ...at(20) })
    await delivery(webhookId, lost, { status: 'rejected', tried: failed(410, 1), ...at(15) })
    await delivery(webhookId, arrived, { status: 'delivered', tried: [{ code: 200 }], ...at(10) })
    const { reasons, next } = JSON.parse((await run(['why', webhookId, '--output', 'json'])).stdout)
    const told = reasons.find(({ code }: { code: string }) => code === 'not_acknowledged')
    assert.match(told.message, /: 1 rejected, since:$/)
    assert.equal(Date.parse(told.at), at(15).created_at)
    assert.match(next, /^tidings webhooks recover/)
  })

  it('says of a webhook what is wrong, since when, how it was before, and what is lost', async () => {
    const webhookId = await webhook()
    const at = (minutes: number) => ({ created_at: NOW - minutes * 60_000 })
    await delivery(webhookId, await event(), { status: 'delivered', tried: [{ code: 200 }], ...at(50) })
    await delivery(webhookId, await event(), { status: 'dropped', tried: failed(500, 11), ...at(40) })
    await delivery(webhookId, await event(), { status: 'pending', tried: failed(500, 2), ...at(30) })
    const { stdout, stderr, code } = await run(['why', webhookId, '--output', 'json'])
    assert.equal(code, 0, stderr)
    const { verdict, reasons, next, counts } = JSON.parse(stdout)
    assert.equal(verdict, 'failing')
    assert.deepEqual(
      reasons.map(({ code }: { code: string }) => code),
      ['failing', 'before', 'waits', 'not_acknowledged'],
    )
    assert.deepEqual(counts, { dropped: 1, pending: 1 })
    assert.match(next, /^tidings webhooks recover/)
    const { stdout: text } = await run(['why', webhookId, '--output', 'table'])
    assert.match(text, /fails\.\n– It answers 500, 2 of the last 2 deliveries, since:/)
    // Since the first attempt of what fails, not the last.
    assert.equal(Date.parse(reasons[0].at), NOW - HOUR)
  })

  for (const [state, noted, codes, next] of [
    ['will heal', {}, ['failing', 'before', 'not_acknowledged', 'heals'], /^tidings webhooks ping/],
    [
      'has given up',
      { given_up_at: NOW },
      ['failing', 'before', 'not_acknowledged', 'healing_given_up'],
      /^tidings webhooks recover/,
    ],
    [
      'has healed',
      { answered_at: NOW - 1, recovered_at: NOW },
      ['failing', 'before', 'healed'],
      /^tidings webhooks ping/,
    ],
  ] as const) {
    it(`says of a webhook that it ${state} by itself`, async () => {
      const again = 'recovered_at' in noted ? { again: { status: 'delivered', created_at: NOW } } : {}
      const { webhookId } = await healing({ status: 'dropped', tried: failed(500, 11) }, noted, again)()
      const { stdout, stderr } = await run(['why', webhookId, '--output', 'json'])
      const why = JSON.parse(stdout || stderr)
      assert.deepEqual(
        why.reasons.map(({ code }: { code: string }) => code),
        codes,
      )
      assert.match(why.next, next)
    })
  }

  it('says that a webhook will heal, though a ping was dropped since, and another event arrived', async () => {
    const { webhookId } = await healing({ status: 'dropped', tried: failed(500, 11) })()
    const eventId = await event()
    await delivery(webhookId, eventId, { status: 'dropped', tried: failed(500, 11), created_at: NOW - 1_000 })
    await delivery(webhookId, eventId, { status: 'delivered', tried: [{ code: 200 }], created_at: NOW - 900 })
    const ping = await event({ type: 'ping', organisation_id: null, project_id: null })
    await delivery(webhookId, ping, { event_type: 'ping', status: 'dropped', tried: failed(500, 11), created_at: NOW })
    const { reasons } = JSON.parse((await run(['why', webhookId, '--output', 'json'])).stdout)
    const told = reasons.find(({ code }: { code: string }) => code === 'not_acknowledged')
    assert.match(told.message, /^Not acknowledged: 1 dropped, since:$/)
    assert.ok(reasons.some(({ code }: { code: string }) => code === 'heals'))
  })

  it('says of a webhook that heals itself when it is pinged, and of one that is disabled that it is not', async () => {
    const { webhookId } = await healing({ status: 'dropped' })()
    const show = async () => (await run(['webhooks', 'show', webhookId, '--output', 'table'])).stdout
    assert.match(await show(), /it has missed events since .*, and is pinged next/)
    await server.database.knex('webhooks').where({ id: webhookId }).update({ status: 'disabled' })
    assert.match(await show(), /it has missed events since .*, and is pinged again once it is active/)
  })

  it('counts what a webhook is restricted to in words', async () => {
    const ofBolt = { organisationIds: [bolt.organisationId] }
    const eventId = await event()
    for (const [given, words] of [
      [ofBolt, 'restricted to 1 organisation; the event'],
      [{ ...ofBolt, projectIds: [bolt.projectId] }, 'restricted to 1 organisation and 1 project; the event'],
    ] as const) {
      const { stdout } = await run(['why', await webhook(given), eventId, '--output', 'json'])
      assert.ok(JSON.parse(stdout).reasons[0].message.includes(words), stdout)
    }
  })

  it('names the organisation and the project of an event that a webhook has not chosen', async () => {
    const webhookId = await webhook({ organisationIds: [bolt.organisationId] })
    const { organisationId, projectId } = acme
    for (const [given, words] of [
      [{}, `the event is of organisation ${organisationId}, project ${projectId}, which`],
      [{ project_id: null }, `the event is of organisation ${organisationId}, which`],
      [{ organisation_id: null, project_id: null }, 'the event is of no organisation of its own, which'],
    ] as const) {
      const { stdout } = await run(['why', webhookId, await event(given), '--output', 'json'])
      assert.ok(JSON.parse(stdout).reasons[0].message.includes(words), stdout)
    }
  })

  for (const [verdict, given, made, next] of [
    ['disabled', { status: 'disabled' }, [], ENABLE],
    ['inactive', { status: 'inactive' }, [], ENABLE],
    ['idle', {}, [], /^why \S+ \S+$/],
    ['healthy', {}, [{ status: 'delivered', tried: [{ code: 200 }] }], null],
    ['refusing', {}, [{ status: 'rejected', tried: [{ code: 400 }] }], RECOVER],
    ['throttled', {}, [{ status: 'pending', tried: [{ code: 429 }] }], null],
    ['failing', {}, [{ status: 'pending', tried: [{ failure: 'tls_error' }] }], /^webhooks ping/],
  ] as const) {
    it(`says of a webhook that it is ${verdict}`, async () => {
      const webhookId = await webhook(given)
      for (const one of made) await delivery(webhookId, await event(), one as never)
      const { stdout, stderr } = await run(['why', webhookId, '--output', 'json'])
      const why = JSON.parse(stdout || stderr)
      assert.equal(why.verdict, verdict, stdout)
      if (next === null) return assert.equal(why.next, null)
      assert.match(why.next.slice('tidings '.length), next)
      const { code, stderr: said } = await run(asTyped(why.next))
      assert.equal(code, 0, said)
    })
  }

  it('says of an organisation which events there were, and where each went', async () => {
    const other = await addProject(server.database, { organisation: 'Cobalt' })
    const of = { organisation_id: other.organisationId, project_id: other.projectId }
    const webhookId = await webhook({}, { name: 'Ledger' })
    const [arrived, missing] = [await event(of), await event(of)]
    await delivery(webhookId, arrived, { status: 'delivered', tried: [{ code: 200 }] })
    assert.equal((await run(['why', other.organisationId])).code, 0)
    const args = ['why', 'Cobalt', '--type', 'project_report_quarterly_submitted', '--since', '1d']
    const { stdout, stderr, code } = await run([...args, '--output', 'json'])
    assert.equal(code, 0, stderr)
    const why = JSON.parse(stdout)
    assert.deepEqual(why.events.map(({ id }: { id: string }) => id).toSorted(), [arrived, missing].toSorted())
    assert.equal(why.verdict, 'some_missing')
    assert.match(why.next, new RegExp(`^tidings why \\S+ ${missing}$`))
    const { stdout: text } = await run([...args, '--output', 'table'])
    assert.match(text, /^1 of 2 events of Cobalt did not arrive, or not everywhere\./)
    assert.match(text, /delivered \(200\) {2}Ledger/)
    assert.match(text, /went nowhere/)
    assert.match(text, /Not to .*:\n {2}– /)
    const none = JSON.parse((await run(['why', 'Cobalt', '--since', '1m', '--output', 'json'])).stdout)
    assert.equal(none.verdict, 'no_events')
    assert.ok(none.latest.time)
  })

  it('aligns the webhooks to which each event of an organisation went', () => {
    const to = (name: string, status: string, statusCode: number) => ({
      ...{ id: name, webhookId: name, webhook: { name, url: null }, handledBefore: false },
      ...{ status: status as 'delivered', attempts: [{ statusCode, failure: null }] },
    })
    const sentTo = [to('Ledger', 'delivered', 200), to('Books', 'rejected', 403), to('Desk', 'pending', 500)]
    const events = [{ id: 'e', type: 'token_expired', time: '2026-11-21T00:40:00.000+00:00', deliveries: sentTo }]
    const nothing = { organisationId: 'o', elsewhere: [], areMore: false, latest: null, reasons: [], next: null }
    const why = { ...nothing, name: 'Acme', verdict: 'some_missing' as const, events }
    const lines = describeOrganisationWhy(why, NOW, pc.createColors(false)).split('\n')
    assert.deepEqual(lines.slice(2, 5), [
      '  delivered (200)  Ledger',
      '  rejected (403)   Books',
      '  pending (500)    Desk',
    ])
  })

  it('says of an organisation without such events why there are none', async () => {
    const [own, other] = [await addProject(server.database), await addProject(server.database)]
    const why = async (...args: string[]) => {
      const { stdout, stderr } = await run(['why', own.organisationId, ...args, '--output', 'json'])
      const { verdict, reasons, next } = JSON.parse(stdout || stderr)
      assert.equal(verdict, 'no_events', stderr)
      return { codes: reasons.map(({ code }: { code: string }) => code), next }
    }
    const type = ['--type', 'project_report_quarterly_submitted']
    assert.deepEqual(await why('--project', other.projectId), {
      codes: ['project_elsewhere'],
      next: `tidings why ${other.organisationId} --project ${other.projectId}`,
    })
    const times = { created_at: NOW, updated_at: NOW }
    await insertMany(
      server.database.knex,
      'project_reports',
      [own, other].map(({ projectId }) => ({
        id: randomUUID(),
        project_id: projectId,
        quarter: '2026-3',
        due_date: '2026-10-30',
        status: 'open',
        ...times,
      })),
    )
    assert.deepEqual(await why(...type, '--project', other.projectId), {
      codes: ['project_elsewhere', 'not_happened'],
      next: `tidings why ${other.organisationId} --project ${other.projectId}`,
    })
    const open = `tidings reports list --status open --project ${own.projectId}`
    assert.deepEqual(await why(...type, '--project', own.projectId), { codes: ['not_happened'], next: open })
    assert.equal((await run(asTyped(open))).code, 0)
    await event({ type: 'project_report_quarterly_approved', organisation_id: own.organisationId, project_id: null })
    assert.deepEqual((await why('--until', '30d')).codes, ['no_longer_kept'])
  })

  it('says of a webhook that nothing was queued for it, and that a pulled one waits for a client', async () => {
    const told = async (webhookId: string) => {
      const { verdict, reasons, next } = JSON.parse((await run(['why', webhookId, '--output', 'json'])).stdout)
      return [verdict, reasons.map(({ code }: { code: string }) => code), next.split(' ').slice(1, 3).join(' ')]
    }
    const [idle, happened] = [await webhook({ events: ['token_expired'] }), await event()]
    assert.deepEqual(await told(idle), ['idle', ['nothing_sent', 'latest_event'], `why ${idle}`])
    const pulled = await webhook({}, { transport: 'pull' })
    await delivery(pulled, happened, { status: 'pending' })
    assert.deepEqual(await told(pulled), ['waiting', ['waits', 'nobody_pulls'], 'deliveries take'])
  })

  it('says of a webhook that only pings went to it, and of which event to ask', async () => {
    const [webhookId, eventId] = [await webhook({ events: ['token_expired'] }), await event({ created_at: NOW + HOUR })]
    await delivery(webhookId, await event(), { status: 'delivered', event_type: 'ping', tried: [{ code: 200 }] })
    const { verdict, reasons, next } = JSON.parse((await run(['why', webhookId, '--output', 'json'])).stdout)
    assert.deepEqual(
      [verdict, reasons.map(({ code }: { code: string }) => code)],
      ['idle', ['only_pings', 'latest_event']],
    )
    assert.equal(next, `tidings why ${webhookId} ${eventId}`)
  })

  it('says of an event that is kept no longer when it happened', async () => {
    const { code, stderr } = await run(['why', await webhook(), newId(Date.UTC(2020, 0, 1)), '--output', 'table'])
    assert.equal(code, 3)
    assert.match(stderr, /The id is of 2020-01-01T00:00:00/)
  })

  it('says that no server sends, where none does', async () => {
    const fresh = await startTestServer('sqlite', { env: { TIDINGS_ROLES: 'api' } })
    const [was, of] = [server, admin]
    try {
      server = fresh
      admin = await fresh.token({ permissions: ['admin'] })
      const { webhookId, eventId } = await sent({ status: 'pending', queue: { due_at: NOW - HOUR } })()
      const document = `{ explainDelivery(webhookId: "${webhookId}", eventId: "${eventId}") { reasons { code } next } }`
      const { data } = await eventually(
        'the server has room',
        () => fresh.graphql(document),
        answer => answer.errors?.[0]?.extensions.code !== 'UNAVAILABLE',
        { everyMs: 100 },
      )
      assert.deepEqual(data.explainDelivery, { reasons: [{ code: 'no_sender' }], next: 'tidings server start' })
    } finally {
      ;[server, admin] = [was, of]
      await fresh.stop()
    }
  })
})
