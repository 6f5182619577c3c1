import { readFileSync } from 'node:fs'
import { buildSchema, type GraphQLSchema, isObjectType } from 'graphql'
import { accessTokenResolvers } from './resolvers/access-tokens.ts'
import { deliveryResolvers } from './resolvers/deliveries.ts'
import { eventResolvers } from './resolvers/events.ts'
import { explainResolvers } from './resolvers/explain.ts'
import { organisationResolvers } from './resolvers/organisations.ts'
import { projectReportResolvers } from './resolvers/project-reports.ts'
import { projectResolvers } from './resolvers/projects.ts'
import type { Resolver, Resolvers } from './resolvers/resolvers.ts'
import { userResolvers } from './resolvers/users.ts'
import { webhookResolvers } from './resolvers/webhooks.ts'
import { completeScalars } from './scalars.ts'

/** The executable schema: schema.graphql with its scalars and resolvers. Throws if a resolver has no place in it. */
export const createSchema = (): GraphQLSchema => {
  const schema = buildSchema(readFileSync(new URL('schema.graphql', import.meta.url), 'utf8'))
  completeScalars(Object.values(schema.getTypeMap()))
  for (const resolvers of [
    accessTokenResolvers,
    deliveryResolvers,
    eventResolvers,
    explainResolvers,
    organisationResolvers,
    projectReportResolvers,
    projectResolvers,
    userResolvers,
    webhookResolvers,
  ]) {
    attach(schema, resolvers)
  }
  return schema
}

const attach = (schema: GraphQLSchema, resolvers: Resolvers): void => {
  for (const [typeName, fields] of Object.entries(resolvers)) {
    const type = schema.getType(typeName)
    if (!isObjectType(type)) throw new Error(`schema.graphql has no type ${typeName}`)
    for (const [name, resolve] of Object.entries(fields)) {
      const field = type.getFields()[name]
      if (!field) throw new Error(`schema.graphql has no field ${typeName}.${name}`)
      field.resolve = typeName === 'Mutation' ? afresh(resolve) : resolve
    }
  }
}

/** A mutation answers with what the ones before it in the same document have changed. */
const afresh =
  (resolve: Resolver): Resolver =>
  (row, args, context, info) => {
    context.forget()
    return resolve(row, args, context, info)
  }
