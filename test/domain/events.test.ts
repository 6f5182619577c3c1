import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, beforeEach, it } from 'node:test'
import { accessTokenOf, createAccessToken } from '../../server/domain/access-tokens.ts'
import { type NewEvent, recordEvent, recordOnDemand, recordPing } from '../../server/domain/events.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { outOfSight } from '../../server/domain/sight.ts'
import { insertWebhook, type WebhookInput } from '../../server/domain/webhooks.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { addProject } from '../support/server.ts'

const sealer = createSealer([randomBytes(32)])
const MAKING = { sealer, candidate: '', mostOfToken: 10_000 }
const NOW = 1_795_221_601_123

describeEachEngine('an event', engine => {
  let fresh: TestDatabase
  let acme: Awaited<ReturnType<typeof addProject>>
  let borealis: Awaited<ReturnType<typeof addProject>>
  let all: AccessToken
  before(async () => {
    fresh = await migratedDatabase(engine)
    acme = await addProject(fresh.database)
    borealis = await addProject(fresh.database)
    all = await token()
  })
  beforeEach(async () => {
    for (const table of ['delivery_queue', 'deliveries', 'event_organisations', 'events']) {
      await fresh.database.knex(table).delete()
    }
    await fresh.database.knex('webhooks').update({ status: 'disabled' })
  })
  after(() => fresh.drop())

  /** A token that sees these organisations, or all. */
  const token = async (organisationIds?: string[]): Promise<AccessToken> => {
    const { database } = fresh
    const { id } = await database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'test', permissions: ['webhooks'], organisationIds }, NOW),
    )
    return accessTokenOf(await database.knex('access_tokens').where({ id }).first(), ['webhooks'])
  }
  const webhook = async (by: AccessToken, input: Omit<WebhookInput, 'url'> = {}): Promise<string> => {
    const { database } = fresh
    const id = randomUUID()
    await database.transaction(trx =>
      insertWebhook({ trx, token: by, now: () => NOW }, id, { url: 'https://example.com/', ...input }, MAKING),
    )
    return id
  }
  const record = (event: NewEvent) => fresh.database.transaction(trx => recordEvent(trx, event, () => NOW))
  const overdue = ({ projectId, organisationId }: typeof acme): NewEvent => ({
    type: 'project_report_quarterly_overdue',
    organisationIds: [organisationId],
    projectId,
    payload: { projectReport: { id: randomUUID(), projectId, quarter: '2026-3' } },
  })
  const expired = (organisationIds: string[] | 'all'): NewEvent => ({
    type: 'token_expired',
    organisationIds,
    payload: { accessTokenId: randomUUID() },
  })
  const receivers = async (): Promise<string[]> => (await fresh.database.knex('deliveries').pluck('webhook_id')).sort()
  /** Which of these webhooks are sent an event, by name. */
  const sentTo = async (event: NewEvent, webhooks: Record<string, string>): Promise<string[]> => {
    await fresh.database.knex('delivery_queue').delete()
    await fresh.database.knex('deliveries').delete()
    await record(event)
    const ids = await receivers()
    return Object.keys(webhooks).filter(name => ids.includes(webhooks[name]!))
  }

  it('is written with a delivery for each webhook and its place in the queue, due now', async () => {
    const ids = [await webhook(all), await webhook(all)].sort()
    await record(overdue(acme))
    const { knex } = fresh.database
    const [event] = await knex('events')
    assert.equal(event.created_at, NOW)
    const deliveries = await knex('deliveries').orderBy('webhook_id')
    assert.deepEqual(
      deliveries.map(({ webhook_id, event_id, status, attempt_count, next_attempt_at }) => [
        webhook_id,
        event_id,
        status,
        attempt_count,
        next_attempt_at,
      ]),
      ids.map(id => [id, event.id, 'pending', 0, NOW]),
    )
    const queue = await knex('delivery_queue').orderBy('webhook_id')
    assert.deepEqual(
      queue.map(({ delivery_id, webhook_id, due_at }) => [delivery_id, webhook_id, due_at]),
      deliveries.map(({ id, webhook_id }) => [id, webhook_id, NOW]),
    )
  })

  it('leaves nothing behind when the change that caused it does not come about', async () => {
    await webhook(all)
    const failing = fresh.database.transaction(async trx => {
      await recordEvent(trx, overdue(acme), () => NOW)
      throw new Error('no')
    })
    await assert.rejects(failing, /no/)
    for (const table of ['events', 'deliveries', 'delivery_queue']) {
      assert.deepEqual(await fresh.database.knex(table), [], table)
    }
  })

  it('goes to webhooks that name its type, and to those that name none', async () => {
    const webhooks = {
      every: await webhook(all),
      overdue: await webhook(all, { events: ['project_report_quarterly_overdue'] }),
      both: await webhook(all, { events: ['project_report_quarterly_overdue', 'token_expired'] }),
      expired: await webhook(all, { events: ['token_expired'] }),
    }
    assert.deepEqual(await sentTo(overdue(acme), webhooks), ['every', 'overdue', 'both'])
    assert.deepEqual(await sentTo(expired('all'), webhooks), ['every', 'both', 'expired'])
  })

  it('goes to webhooks that name its organisation or its project', async () => {
    const [organisationIds, projectIds] = [[acme.organisationId], [acme.projectId]]
    const webhooks = {
      everything: await webhook(all),
      organisation: await webhook(all, { organisationIds }),
      project: await webhook(all, { projectIds }),
      organisationOrOtherProject: await webhook(all, { organisationIds, projectIds: [borealis.projectId] }),
      otherOrganisationOrProject: await webhook(all, { organisationIds: [borealis.organisationId], projectIds }),
      other: await webhook(all, { organisationIds: [borealis.organisationId], projectIds: [borealis.projectId] }),
    }
    assert.deepEqual(await sentTo(overdue(acme), webhooks), [
      'everything',
      'organisation',
      'project',
      'organisationOrOtherProject',
      'otherOrganisationOrProject',
    ])
    const sibling = randomUUID()
    const { knex } = fresh.database
    await knex('projects').insert({ ...(await knex('projects').where('id', acme.projectId).first()), id: sibling })
    assert.deepEqual(await sentTo(overdue({ ...acme, projectId: sibling }), webhooks), [
      'everything',
      'organisation',
      'organisationOrOtherProject',
    ])
  })

  it('goes to no webhook whose token does not see it, whatever the webhook names', async () => {
    const acmeOnly = await token([acme.organisationId])
    const webhooks = {
      everything: await webhook(acmeOnly),
      project: await webhook(acmeOnly, { projectIds: [acme.projectId] }),
      // Named before its token was narrowed.
      foreign: await webhook(acmeOnly, { organisationIds: [borealis.organisationId] }),
    }
    assert.deepEqual(await sentTo(overdue(acme), webhooks), ['everything', 'project'])
    assert.deepEqual(await sentTo(overdue(borealis), webhooks), [])
  })

  it('goes to a webhook that names nothing by what its token sees when the event happens', async () => {
    const narrow = await token([acme.organisationId])
    const webhooks = { unscoped: await webhook(narrow) }
    assert.deepEqual(await sentTo(overdue(borealis), webhooks), [])
    const seen = { access_token_id: narrow.id, organisation_id: borealis.organisationId }
    await fresh.database.knex('access_token_organisations').insert(seen)
    assert.deepEqual(await sentTo(overdue(borealis), webhooks), ['unscoped'])
    await fresh.database.knex('access_token_organisations').where(seen).delete()
    assert.deepEqual(await sentTo(overdue(borealis), webhooks), [])
    const later = await addProject(fresh.database)
    const everything = { unscoped: await webhook(all) }
    assert.deepEqual(await sentTo(overdue(later), everything), ['unscoped'])
  })

  it('of several organisations goes once to each webhook of one of them', async () => {
    const acmeOnly = await token([acme.organisationId])
    const nothing = await token([])
    const webhooks = {
      everything: await webhook(all),
      both: await webhook(all, { organisationIds: [acme.organisationId, borealis.organisationId] }),
      acmeUnscoped: await webhook(acmeOnly),
      projectOnly: await webhook(all, { projectIds: [acme.projectId] }),
      another: await webhook(all, { organisationIds: [(await addProject(fresh.database)).organisationId] }),
      nothing: await webhook(nothing),
    }
    const several = ['everything', 'both', 'acmeUnscoped']
    assert.deepEqual(await sentTo(expired([acme.organisationId, borealis.organisationId]), webhooks), several)
    assert.equal((await receivers()).length, several.length)
    assert.deepEqual(await sentTo(expired('all'), webhooks), ['everything', 'both', 'acmeUnscoped', 'another'])
    assert.deepEqual(await sentTo(expired([borealis.organisationId]), webhooks), ['everything', 'both'])
    assert.deepEqual(await sentTo(expired([]), webhooks), [])
  })

  it('goes to active webhooks only', async () => {
    const webhooks = {
      active: await webhook(all),
      disabled: await webhook(all, { status: 'disabled' }),
      named: await webhook(all, { status: 'disabled', organisationIds: [acme.organisationId] }),
      inactive: await webhook(all),
    }
    await fresh.database.knex('webhooks').where('id', webhooks.inactive).update({ status: 'inactive' })
    assert.deepEqual(await sentTo(overdue(acme), webhooks), ['active'])
  })

  it('stays in sight of a token that sees its organisation and its project, or if it is on demand', async () => {
    const { knex } = fresh.database
    const { id: accessTokenId } = await token([acme.organisationId])
    const gone = await addProject(fresh.database)
    const given: Record<string, () => Promise<unknown>> = {
      ping: () => recordPing(knex, NOW),
      example: () => recordOnDemand(knex, NOW, { type: 'token_expired', payload: {}, isExample: true }),
      acme: () => record(overdue(acme)),
      several: () => record(expired([acme.organisationId, borealis.organisationId])),
      all: () => record(expired('all')),
      borealis: () => record(overdue(borealis)),
      others: () => record(expired([borealis.organisationId, gone.organisationId])),
      moved: () => record(overdue({ ...acme, projectId: gone.projectId })),
    }
    const names = new Map<string, string>()
    for (const [name, make] of Object.entries(given)) {
      await make()
      for (const id of await knex('events').pluck('id')) if (!names.has(id)) names.set(id, name)
    }
    const { id: another } = await token([borealis.organisationId])
    const unseenBy = async (id: string) => {
      const owed = [accessTokenId, another].flatMap(accessTokenId =>
        [...names.keys()].map(eventId => ({ accessTokenId, seesAllOrganisations: false, eventId })),
      )
      const unseen = [...(await outOfSight(knex, owed, sight => sight))].filter(one => one.accessTokenId === id)
      return unseen.map(({ eventId }) => names.get(eventId)).toSorted()
    }
    assert.deepEqual(await unseenBy(accessTokenId), ['borealis', 'moved', 'others'])
    assert.deepEqual(await unseenBy(another), ['acme', 'moved'])
  })

  it('is not sent to anybody when it is a ping', async () => {
    await webhook(all)
    await recordPing(fresh.database.knex, NOW)
    assert.deepEqual(await receivers(), [])
  })
})
