import {
  type GraphQLObjectType,
  type GraphQLResolveInfo,
  type GraphQLSchema,
  getNamedType,
  isObjectType,
} from 'graphql'
import type { Permission } from '../../shared/vocabulary.ts'
import { requirePermission } from '../domain/permissions.ts'
import { type Entity, resources } from '../domain/resources.ts'
import { ownValue, type Row } from '../mango/documents.ts'
import type { MangoQuery } from '../mango/query.ts'
import type { Field, Resource } from '../mango/resource.ts'
import type { QueryContext } from './context.ts'
import { selectedIn } from './selected.ts'

/** The arguments of a list. */
export type Listing = { query?: MangoQuery | null }

export type Resolver<Source = Row, Args = Listing, Of = QueryContext> = (
  source: Source,
  args: Args,
  context: Of,
  info: GraphQLResolveInfo,
) => unknown

/** A resolver for tokens with a permission. */
export const needs =
  <Source, Args, Of extends QueryContext>(
    permission: Permission,
    resolve: Resolver<Source, Args, Of>,
  ): Resolver<Source, Args, Of> =>
  (source, args, context, info) => {
    requirePermission(context.token, permission)
    return resolve(source, args, context, info)
  }

/** Sets the resolvers of each resource's query and fields. Throws if one is not in the schema. */
export const resolveResources = (schema: GraphQLSchema): void => {
  for (const resource of Object.values(resources)) {
    const list: Resolver<unknown> = (_root, { query }, context, info) =>
      context.budget.answer(info, context.list(resource, query), rows => loadAhead(resource, rows, context, info))
    const type = resolve(schema.getQueryType()!, resource.name, needs('read', list))
    resolveFields(type, resource)
  }
}

/** Sets a field's resolver, and returns its type. */
export const resolve = <Source, Args, Of>(
  type: GraphQLObjectType,
  name: string,
  resolver: Resolver<Source, Args, Of>,
) => {
  const field = type.getFields()[name]
  if (!field) throw new Error(`schema.graphql has no field ${type.name}.${name}`)
  field.resolve = resolver as NonNullable<typeof field.resolve>
  return getNamedType(field.type)
}

const resolveFields = (type: unknown, resource: Resource & Pick<Entity, 'lists'>): void => {
  if (!isObjectType(type)) throw new Error(`schema.graphql has no type for ${resource.name}`)
  for (const [name, field] of Object.entries(resource.fields)) {
    const below = resolve(type, name, resolverOf(resource, field))
    if (field.kind === 'children') resolveFields(below, field.resource())
    if (field.kind === 'derived' && field.object) resolveFields(below, field.object)
  }
  for (const [name, { resource: listed, key }] of Object.entries(resource.lists ?? {})) {
    // Whatever leads to it: today only queries do, which need the same permission.
    resolve(type, name, needs('read', childrenOf(listed(), { column: key })))
  }
}

/**
 * Loads what fields of these rows read from other tables, before any row is answered: with a promise for each row and
 * field, 10,000 webhooks take 400 MB.
 */
const loadAhead = async (
  { fields }: Resource,
  rows: readonly Row[],
  { loaders }: QueryContext,
  info: GraphQLResolveInfo,
): Promise<void> => {
  const ids = rows.map(row => row.id as string)
  const selected = [...selectedIn(info)].map(name => fields[name])
  const loaded = selected.filter(field => field?.kind === 'list' || field?.kind === 'derived') as Field[]
  await Promise.all(loaded.map(field => loaders.value(field).loadAhead(ids)))
}

const resolverOf = (resource: Resource, field: Field): Resolver => {
  switch (field.kind) {
    case 'column':
    case 'json':
    case 'part':
      return ownText(field)
    case 'list':
      return (row, _args, { loaders, budget }) => budget.list(loaders.value(field).load(row.id as string))
    case 'derived': {
      const to = field.row?.()
      if (!to) return (row, _args, { loaders }) => loaders.value(field).load(row.id as string)
      return async (row, _args, { loaders }) => {
        const id = await loaders.value(field).load(row.id as string)
        return id === null ? null : loaders.seenRow(to).load(id as string)
      }
    }
    case 'related': {
      const { column } = field
      const to = field.resource()
      if (!isNullable(resource, column)) {
        return (row, _args, { loaders }) => loaders.row(to).load(row[column] as string)
      }
      return (row, _args, { loaders }) =>
        row[column] === null ? null : loaders.seenRow(to).load(row[column] as string)
    }
    case 'children':
      return childrenOf(field.resource(), { column: field.key, orderBy: field.orderBy })
  }
}

/** Reads a field from its row, and spends its text. */
const ownText = (field: Extract<Field, { kind: 'column' | 'json' | 'part' }>): Resolver => {
  const read = ownValue(field)
  if (field.kind === 'column' && (field.type !== 'string' || field.values)) return read
  const { column } = field
  return (row, _args, { budget }) => {
    const text = row[column]
    if (typeof text === 'string') budget.text(text.length)
    return read(row)
  }
}

/** Whether a field may be null. If it may not, every caller who sees the row also sees the related row. */
export const isNullable = ({ fields }: Resource, column: string): boolean =>
  Object.values(fields).some(field => field.kind === 'column' && field.column === column && field.nullable)

const childrenOf =
  (resource: Resource, parents: { column: string; orderBy?: string }): Resolver =>
  (row, { query }, { loaders, budget }, info) =>
    budget.answer(info, loaders.list(info, loaders.children(resource, query, parents)).load(row.id as string))
