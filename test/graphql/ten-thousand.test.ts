import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { type GraphQLObjectType, getNamedType, isLeafType, isObjectType } from 'graphql'
import { insertMany } from '../../server/database/connect.ts'
import { BUDGET } from '../../server/graphql/budget.ts'
import { createSchema } from '../../server/graphql/schema.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { deliveryStatuses, eventTypes } from '../../shared/vocabulary.ts'
import { describeEachEngine } from '../support/databases.ts'
import { cpuMsOf } from '../support/effort.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhooks } from '../support/webhooks.ts'

const ENV = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' }
/** The most rows of a list. */
const MOST = 10_000
const NOW = Date.now()

/** Every field of a webhook, and every field of the objects in it that are no lists of other rows. */
const ALL_FIELDS = ((): string => {
  const leaves = (type: GraphQLObjectType) =>
    Object.values(type.getFields()).filter(({ type }) => isLeafType(getNamedType(type)))
  const webhook = createSchema().getType('Webhook') as GraphQLObjectType
  const objects = Object.values(webhook.getFields()).flatMap(({ name, type, args }) => {
    const named = getNamedType(type)
    return isObjectType(named) && args.length === 0 ? [`${name} { ${leaves(named).map(it => it.name)} }`] : []
  })
  return [...leaves(webhook).map(it => it.name), ...objects].join(' ')
})()

// Each webhook has all that a webhook can have, at a common length.
describeEachEngine('10,000 webhooks', engine => {
  let server: TestServer
  let limited: Credentials
  before(async () => {
    server = await startTestServer(engine, { env: ENV })
    const { knex } = server.database
    const places = await Promise.all([1, 2, 3].map(() => addProject(server.database)))
    const organisationIds = places.map(place => place.organisationId)
    const owner = await server.token({ organisationIds })
    limited = owner
    const ids = await addWebhooks(
      knex,
      Array.from({ length: MOST }, (_, n) => ({
        accessTokenId: owner.id,
        url: `https://hooks.example.com/tenants/${n}/notifications/reports?key=${randomUUID()}`,
        events: eventTypes.slice(0, 3),
        organisationIds: organisationIds.slice(0, 2),
        projectIds: places.map(place => place.projectId),
        statusReason: 'It answered 429 without a Retry-After header that could be read',
      })),
    )
    await knex('webhooks').update({ name: 'Reports', labels: '{"team":"payments","stage":"production"}' })
    const headers = ids.flatMap(id => ['authorization', 'x-tenant'].map(name => ({ webhook_id: id, name })))
    await insertMany(knex, 'webhook_headers', headers)
    const healing = { missed_since: NOW, began_at: NOW, due_at: NOW, recovered_at: NOW }
    await insertMany(
      knex,
      'webhook_recoveries',
      ids.map(id => ({ webhook_id: id, ...healing })),
    )
    const event = { id: randomUUID(), type: 'ping', payload: '{}', all_organisations: 0, created_at: NOW }
    await knex('events').insert(event)
    await insertMany(
      knex,
      'deliveries',
      ids.flatMap(id =>
        deliveryStatuses.map(status => ({
          ...{ id: randomUUID(), webhook_id: id, event_id: event.id, event_type: 'ping', status },
          ...{ created_at: NOW, finished_at: status === 'pending' ? null : NOW },
        })),
      ),
    )
  })
  after(() => server.stop())

  /** All of them, for which this process has had less processor time than a query has time. */
  const listed = async (as?: Credentials) => {
    let answer: GraphqlAnswer | undefined
    const cpuMs = await cpuMsOf(async () => {
      answer = await server.graphql(`{ webhooks { ${ALL_FIELDS} } }`, {}, as)
    })
    const { data, errors } = answer!
    assert.equal(errors, undefined)
    assert.equal(data.webhooks.length, MOST)
    assert.ok(cpuMs < BUDGET.timeMs, `${cpuMs} ms`)
    return data.webhooks
  }

  it('come with all their fields in one list', async () => {
    const webhooks = await listed()
    const { events, organisationIds, projectIds, headers, recoveredAt, health } = webhooks[MOST - 1]
    const lengths = [events, organisationIds, projectIds, headers].map(list => list.length)
    assert.deepEqual([lengths, health.delivered, Date.parse(recoveredAt)], [[3, 2, 3, 2], 1, NOW])
  })

  it('come so to a token that sees some organisations', async () => {
    await listed(limited)
  })

  it('have the same values through fragments, aliases and directives', async () => {
    const document = `query ($no: Boolean!) {
      plain: webhooks(query: {limit: 3}) { id events organisationIds headers lastDeliveryAt }
      other: webhooks(query: {limit: 3}) { id ...listed health @include(if: $no) { pending } }
    }
    fragment listed on Webhook { events ... on Webhook { organisationIds headers @skip(if: $no) lastDeliveryAt } }`
    const { data, errors } = await server.graphql(document, { no: false })
    assert.equal(errors, undefined)
    assert.deepEqual(data.other, data.plain)
  })
})
