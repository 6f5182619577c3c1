import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { buildSchema, GraphQLObjectType, parse, validate } from 'graphql'
import { createWebhook, fieldNames, inputTypes, upsertWebhook } from '../../cli/resources/webhook.ts'

// What the API's schema says, against what the command line has of it: what one has and the other has not is named.

const schema = buildSchema(readFileSync(new URL('../../server/graphql/schema.graphql', import.meta.url), 'utf8'))

/** What is asked for by a command of its own. */
const RELATIONS = ['deliveries']

const argumentsOf = (mutation: string): Record<string, string> => {
  const { args } = schema.getMutationType()!.getFields()[mutation]!
  return Object.fromEntries(args.map(({ name, type }) => [name, String(type).replace(/!$/, '')]))
}
const nullable = (types: Record<string, string>): Record<string, string> =>
  Object.fromEntries(Object.entries(types).map(([name, type]) => [name, type.replace(/!$/, '')]))

test('every field that the API has of a webhook is one that the command line has, and the other way round', () => {
  const type = schema.getType('Webhook')
  assert.ok(type instanceof GraphQLObjectType)
  const own = Object.keys(type.getFields()).filter(name => !RELATIONS.includes(name))
  assert.deepEqual(own.toSorted(), fieldNames.toSorted())
})

test('every argument that sets something of a webhook is one that the command line sets', () => {
  assert.deepEqual(argumentsOf('upsertWebhook'), nullable(inputTypes))
  const { id, status, ...creation } = nullable(inputTypes)
  assert.deepEqual(argumentsOf('createWebhook'), creation)
})

test('what is asked for when a webhook is created or changed is what the API has', () => {
  for (const document of [createWebhook, upsertWebhook]) assert.deepEqual(validate(schema, parse(document)), [])
})
