import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { type GraphQLObjectType, getNamedType, isEnumType, isObjectType } from 'graphql'
import { type Entity, resources } from '../../server/domain/resources.ts'
import { Budget } from '../../server/graphql/budget.ts'
import { isNullable } from '../../server/graphql/fields.ts'
import { createSchema } from '../../server/graphql/schema.ts'
import type { Field, Resource } from '../../server/mango/resource.ts'
import {
  deliveryStatuses,
  deliveryVerdicts,
  eventTypes,
  permissions,
  rehearsalScenes,
  reportStatuses,
  webhookOrderings,
  webhookRecoveries,
  webhookSignings,
  webhookStatuses,
  webhookTransports,
} from '../../shared/vocabulary.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'

// The readable fields are in three places: the tables, domain/resources.ts and schema.graphql. These tests compare
// them.

const schema = createSchema()
const queries = schema.getQueryType()!

const enums: Record<string, readonly string[]> = {
  EventType: eventTypes,
  WebhookStatus: webhookStatuses,
  WebhookOrdering: webhookOrderings,
  WebhookRecovery: webhookRecoveries,
  WebhookTransport: webhookTransports,
  WebhookSigning: webhookSignings,
  RehearsalScene: rehearsalScenes,
  DeliveryStatus: deliveryStatuses,
  DeliveryVerdict: deliveryVerdicts,
  ReportStatus: reportStatuses,
  Permission: permissions,
  Resource: Object.keys(resources),
}

/** Fields that no resource has: each has a resolver written by hand. */
const byHand: Record<string, Record<string, string>> = {
  Query: {
    viewer: 'AccessToken!',
    counts: '[Count!]!',
    explain: 'Explanation!',
    explainDelivery: 'DeliveryExplanation!',
    deliveryEvidence: 'JSON!',
  },
  AccessToken: { organisations: '[Organisation!]!' },
  Webhook: { secret: 'String' },
}

/** Columns that nobody is shown, by table. */
const notShown: Record<string, string[]> = {
  organisations: ['created_at', 'updated_at'],
  projects: ['created_at', 'updated_at'],
  users: ['created_at', 'updated_at'],
  project_reports: ['created_at', 'updated_at'],
  webhooks: [
    'access_token_id',
    'all_events',
    'all_organisations_and_projects',
    'held_until',
    'request_sealed',
    'ordered_since',
    'automatic_since',
    'epoch',
    'ended_epoch',
    'sweeping',
  ],
  events: ['all_organisations', 'about_webhook_id', 'traceparent'],
  deliveries: [],
  attempts: ['delivery_id', 'evidence'],
  access_tokens: ['expiry_event_at', 'secret_sealed', 'updated_at'],
  audit_log: ['signature_hash'],
}

type Described = Resource & Pick<Entity, 'lists'>

const typeAt = (type: GraphQLObjectType, name: string): GraphQLObjectType => {
  const found = getNamedType(type.getFields()[name]?.type)
  assert.ok(isObjectType(found), `${type.name}.${name} is no object`)
  return found
}
const typeOf = (resource: Resource): GraphQLObjectType => typeAt(queries, resource.name)

/** Every resource with its type, those that are only part of another included. */
const described = Object.values(resources).flatMap((resource): [GraphQLObjectType, Described][] => {
  const type = typeOf(resource)
  const parts = Object.entries(resource.fields).flatMap(([name, field]): [GraphQLObjectType, Described][] => {
    if (field.kind === 'children') return [[typeAt(type, name), field.resource()]]
    return field.kind === 'derived' && field.object ? [[typeAt(type, name), field.object]] : []
  })
  return [[type, resource], ...parts]
})

const scalars = { uuid: 'UUID', string: 'String', integer: 'Int', boolean: 'Boolean', time: 'DateTime', date: 'Date' }
const leafOf = ({ type, values }: Extract<Field, { kind: 'column' | 'list' }>): string | undefined =>
  values ? Object.keys(enums).find(name => enums[name] === values) : scalars[type]

/** The type that a field is to have in the schema. */
const expected = (type: GraphQLObjectType, resource: Resource, name: string, field: Field): string => {
  switch (field.kind) {
    case 'column':
      return `${leafOf(field)}${field.nullable ? '' : '!'}`
    case 'json':
      return 'JSON!'
    case 'part':
      return field.text ? 'String' : name === 'phases' ? 'AttemptPhases' : 'JSON'
    case 'list':
      return `[${leafOf(field)}!]!`
    case 'related':
      return `${typeOf(field.resource())}${isNullable(resource, field.column) ? '' : '!'}`
    case 'children':
      return `[${typeAt(type, name)}!]!`
    case 'derived':
      if (field.row) return `${typeOf(field.row())}`
      return field.object ? `${typeAt(type, name)}!` : 'DateTime'
  }
}

const typesIn = (type: GraphQLObjectType): Record<string, string> =>
  Object.fromEntries(Object.values(type.getFields()).map(field => [field.name, String(field.type)]))

describe('the schema', () => {
  it('has in each enum the words of the vocabulary, all of them and no others', () => {
    const found = Object.values(schema.getTypeMap()).filter(type => isEnumType(type) && !type.name.startsWith('__'))
    assert.deepEqual(
      Object.fromEntries(found.map(type => [type.name, isEnumType(type) && type.getValues().map(({ name }) => name)])),
      enums,
    )
  })

  it('has a query for each resource, and two others', () => {
    const lists = Object.values(resources).map(resource => [resource.name, `[${typeOf(resource)}!]!`])
    assert.deepEqual(typesIn(queries), { ...Object.fromEntries(lists), ...byHand.Query })
    for (const [name, resource] of Object.entries(resources)) assert.equal(resource.name, name)
  })

  for (const [type, resource] of described) {
    it(`has in ${type} every field of ${resource.name}, of its type, and no other`, () => {
      const fields = Object.entries(resource.fields).map(([name, field]) => [
        name,
        expected(type, resource, name, field),
      ])
      const lists = Object.entries(resource.lists ?? {}).map(([name, list]) => [name, `[${typeOf(list.resource())}!]!`])
      assert.deepEqual(typesIn(type), { ...Object.fromEntries([...fields, ...lists]), ...byHand[type.name] })
    })

    it(`resolves every field of ${type}, its columns from the row`, () => {
      const samples = {
        uuid: ['01936f2e', '01936f2e'],
        string: ['text', 'text'],
        integer: [7, 7],
        boolean: [0, false],
        time: [1_795_221_601_123, '2026-11-21T00:40:01.123+00:00'],
        date: ['2026-11-21', '2026-11-21'],
      }
      for (const field of Object.values(type.getFields())) assert.ok(field.resolve, field.name)
      for (const [name, field] of Object.entries(resource.fields)) {
        if (field.kind !== 'column') continue
        const read = (raw: unknown) =>
          type.getFields()[name]!.resolve!({ [field.column]: raw }, {}, { budget: new Budget() }, undefined as never)
        const [raw, shown] = samples[field.type]
        assert.equal(read(raw), shown, name)
        if (field.nullable) assert.equal(read(null), null, name)
      }
    })
  }

  it('takes a query in every list of rows', () => {
    const objects = Object.values(schema.getTypeMap()).filter(type => isObjectType(type) && !type.name.startsWith('__'))
    for (const type of objects) {
      for (const field of Object.values((type as GraphQLObjectType).getFields())) {
        // A count and an explanation have no rows to page through, nor has the result of a mutation.
        if (['counts', 'reasons'].includes(field.name) || type === schema.getMutationType()) continue
        if (!String(field.type).startsWith('[') || !isObjectType(getNamedType(field.type))) continue
        const taken = field.args.map(argument => `${argument.name}: ${argument.type}`)
        assert.deepEqual(taken, ['query: MangoQuery'], `${type.name}.${field.name}`)
      }
    }
  })
})

describeEachEngine('the tables', engine => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await migratedDatabase(engine)
  })
  after(() => fresh.drop())

  const columnsOf = async (table: string) => Object.entries(await fresh.database.knex(table).columnInfo())

  for (const [type, resource] of described) {
    const { table, fields, lists = {} } = resource
    // A computed field has no table.
    if (['WebhookHealth', 'WebhookClients'].includes(type.name)) continue

    it(`have in ${table} a column for each field, of its type, and no other but hidden ones`, async () => {
      const shape = ({ type, nullable }: Extract<Field, { kind: 'column' }>) =>
        `${['integer', 'boolean', 'time'].includes(type) ? 'number' : 'text'}${nullable ? ' or null' : ''}`
      const wanted = Object.values(fields).flatMap(field => {
        if (field.kind === 'column') return [[field.column, shape(field)]]
        return field.kind === 'json' ? [[field.column, 'text']] : []
      })
      const found = (await columnsOf(table)).filter(([name]) => !notShown[table]!.includes(name))
      // SQLite says of a primary key of text that it may be null.
      assert.deepEqual(
        Object.fromEntries(
          found.map(([name, { type, nullable }]) => [
            name,
            `${/int/i.test(type) ? 'number' : 'text'}${nullable && name !== 'id' ? ' or null' : ''}`,
          ]),
        ),
        Object.fromEntries(wanted),
        'Name a new column in server/domain/resources.ts and schema.graphql, or in notShown above',
      )
      const there = (await columnsOf(table)).map(([name]) => name)
      assert.deepEqual(
        notShown[table]!.filter(name => !there.includes(name)),
        [],
      )
      for (const field of Object.values(fields)) {
        if (field.kind === 'related') assert.ok(there.includes(field.column), field.column)
      }
    })

    it(`have the columns that lead from ${table} to what belongs to a row of it`, async () => {
      const wanted = [
        ...Object.values(lists).map(({ resource, key }) => [resource().table, [key]] as const),
        ...Object.values(fields).flatMap(field => {
          if (field.kind === 'list') return [[field.table, [field.key, field.column]] as const]
          return field.kind === 'children' ? [[field.resource().table, [field.key, field.orderBy]] as const] : []
        }),
      ]
      for (const [name, columns] of wanted) {
        const there = (await columnsOf(name)).map(([column]) => column)
        for (const column of columns) assert.ok(there.includes(column), `${name}.${column}`)
      }
    })
  }
})
