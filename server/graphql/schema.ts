import { readFileSync } from 'node:fs'
import { buildSchema, type GraphQLSchema, isObjectType } from 'graphql'
import { badInput } from '../../shared/errors.ts'
import { explainDelivery } from '../domain/explain-delivery.ts'
import { accessTokens, deliveries, resources } from '../domain/resources.ts'
import type { Explain, MangoQuery } from '../mango/query.ts'
import type { Context } from './context.ts'
import { needs, type Resolver, resolve, resolveResources } from './fields.ts'
import type { Mutations } from './mutations/mutation.ts'
import { completeScalars } from './scalars.ts'
import { tokenOrganisations } from './token-organisations.ts'

const viewer: Resolver<unknown> = (_root, _args, { loaders, token }) => loaders.row(accessTokens).load(token.id)

const explain: Resolver<unknown, { resource: string; query?: MangoQuery | null }> = (
  _root,
  { resource, query },
  context,
) => context.explain(resources[resource]!, query)

/** Only operators may see how the database is laid out. */
const sql: Resolver<Explain, unknown> = (explained, _args, { token }) =>
  token.permissions.includes('admin') ? explained.sql : null

/** Which indexes a database uses depends on all its rows, which a limited token does not see. */
const indexes: Resolver<Explain, unknown> = (explained, _args, { token }) =>
  token.permissions.includes('admin') && token.seesAllOrganisations ? explained.indexes : null

/** Only the mutation that makes a webhook's secret answers it. */
const secretOf: Resolver<{ secret?: string | null }> = ({ secret = null }) => secret

/** The delivery of an answer, if the token may read and sees it. */
const answeredDelivery: Resolver<{ deliveryId: string }, unknown> = ({ deliveryId }, _args, { loaders }) =>
  loaders.seenRow(deliveries).load(deliveryId)

const explainDelivered: Resolver<unknown, { webhookId: string; eventId: string }> = (_root, ids, context) =>
  explainDelivery(context.database.knex, context.token, ids, context.tools.clock.now())

type Counting = { resource: string; selector?: unknown; by?: string[] | null }

const counts: Resolver<unknown, Counting> = (_root, { resource, selector, by }, context, info) =>
  context.budget.answer(info, context.count(resources[resource]!, selector, by ?? []))

/** Yields the arguments of a subscription once; server/live sends its results. */
async function* givenTo(_root: unknown, args: { selector?: unknown }): AsyncGenerator<{ selector: unknown }> {
  yield { selector: args.selector }
}

/** The queries that need a signing key. */
export type Signing = { deliveryEvidence?: Resolver<unknown, { deliveryId: string }, Context> }

const notHere: Resolver<unknown, { deliveryId: string }> = () => {
  throw badInput('deliveryEvidence', 'is asked for in a request of its own, with nothing beside it')
}

/** The text of the schema, which `/spec/schema.graphql` answers and the package exports. */
export const schemaText = readFileSync(new URL('schema.graphql', import.meta.url), 'utf8')

/**
 * The executable schema: schema.graphql with its scalars and resolvers. Throws if a resolver has no place in it.
 *
 * @param mutations none in a process that only reads, which loads nothing of what changes things
 * @param signing none in a process that has no keys
 */
export const createSchema = (
  mutations: Mutations = {},
  { deliveryEvidence = notHere }: Signing = {},
): GraphQLSchema => {
  // Tests build it with all that is left out here.
  const schema = buildSchema(schemaText, { assumeValidSDL: true, noLocation: true })
  completeScalars(Object.values(schema.getTypeMap()))
  resolveResources(schema)
  const query = schema.getQueryType()!
  const token = resolve(query, 'viewer', needs('read', viewer))
  if (isObjectType(token)) resolve(token, 'organisations', needs('read', tokenOrganisations))
  resolve(query, 'counts', needs('read', counts))
  resolve(query, 'explainDelivery', needs('read', explainDelivered))
  resolve(query, 'deliveryEvidence', needs('read', deliveryEvidence))
  const explanation = resolve(query, 'explain', needs('read', explain))
  if (isObjectType(explanation)) {
    resolve(explanation, 'sql', sql)
    resolve(explanation, 'indexes', indexes)
  }
  const webhook = schema.getType('Webhook')
  if (isObjectType(webhook)) resolve(webhook, 'secret', secretOf)
  const answered = schema.getType('AnsweredDelivery')
  if (isObjectType(answered)) resolve(answered, 'delivery', answeredDelivery)
  const live = schema.getSubscriptionType()!.getFields().deliveries!
  live.subscribe = needs('read', givenTo) as NonNullable<typeof live.subscribe>
  for (const [name, mutation] of Object.entries(mutations)) resolve(schema.getMutationType()!, name, mutation)
  return schema
}
