import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import {
  buildSchema,
  GraphQLObjectType,
  getNamedType,
  isLeafType,
  Kind,
  parse,
  type SelectionSetNode,
  validate,
} from 'graphql'
import { auditFields } from '../../cli/commands/audit.ts'
import { eventFields } from '../../cli/commands/events.ts'
import { organisationFields } from '../../cli/commands/organisations.ts'
import { projectFields } from '../../cli/commands/projects.ts'
import { reportFields } from '../../cli/commands/reports.ts'
import { userFields } from '../../cli/commands/users.ts'
import { tokenFields } from '../../cli/resources/access-token.ts'
import { deliveryFields } from '../../cli/resources/timeline.ts'
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

/** What the command line asks of a type that it shows. */
const asked = (selection: string, path: string[] = []): string[] => {
  const [definition] = parse(`{ ${selection} }`).definitions
  assert.ok(definition?.kind === Kind.OPERATION_DEFINITION)
  const fieldsOf = (set: SelectionSetNode | undefined) => (set?.selections ?? []).filter(one => one.kind === Kind.FIELD)
  let set: SelectionSetNode | undefined = definition.selectionSet
  for (const name of path) set = fieldsOf(set).find(field => field.name.value === name)?.selectionSet
  // What refers to a row says its id as well.
  return fieldsOf(set).flatMap(({ name, selectionSet }) => [name.value, ...(selectionSet ? [`${name.value}Id`] : [])])
}

for (const [type, fields] of Object.entries({
  Organisation: asked(organisationFields),
  Project: asked(projectFields),
  User: asked(userFields),
  ProjectReport: asked(reportFields),
  Event: asked(eventFields),
  Delivery: asked(deliveryFields),
  Attempt: asked(deliveryFields, ['attempts']),
  AttemptPhases: asked(deliveryFields, ['attempts', 'phases']),
  AccessToken: asked(tokenFields),
  AuditEntry: asked(auditFields),
})) {
  test(`every field of ${type} is one that the command line shows`, () => {
    const shown = schema.getType(type)
    assert.ok(shown instanceof GraphQLObjectType)
    const own = Object.values(shown.getFields()).filter(field => isLeafType(getNamedType(field.type)))
    assert.ok(own.length > 1)
    const names = own.map(({ name }) => name)
    assert.deepEqual(
      names.filter(name => !fields.includes(name)),
      [],
      'Ask for it in cli/, and show it',
    )
  })
}
