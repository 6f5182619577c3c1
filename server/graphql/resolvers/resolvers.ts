import type { GraphQLResolveInfo } from 'graphql'
import { parseIso, toIso } from '../../../shared/time.ts'
import type { Permission } from '../../../shared/vocabulary.ts'
import { type Context, requirePermission } from '../context.ts'

// biome-ignore lint/suspicious/noExplicitAny: the schema has checked rows and arguments before a resolver sees them
export type Resolver = (row: any, args: any, context: Context, info: GraphQLResolveInfo) => unknown
export type Resolvers = Record<string, Record<string, Resolver>>

/** A resolver that only tokens with a permission reach. */
export const needs =
  (permission: Permission, resolve: Resolver): Resolver =>
  (row, args, context, info) => {
    requirePermission(context, permission)
    return resolve(row, args, context, info)
  }

/** Reads a column as it is. */
export const column =
  (name: string): Resolver =>
  row =>
    row[name]

/** Reads a column of epoch milliseconds as an ISO time. */
export const time =
  (name: string): Resolver =>
  row =>
    row[name] === null ? null : toIso(Number(row[name]))

/** Loads the row that a column names, or null where it names none. */
export const related =
  (name: string, load: (context: Context) => { load(id: string): Promise<unknown> }): Resolver =>
  (row, _args, context) =>
    row[name] === null ? null : load(context).load(row[name])

/** The arguments that were given: null and absent are the same. */
// biome-ignore lint/suspicious/noExplicitAny: the schema has checked the arguments
export const given = (args: Record<string, unknown>): any =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== null && value !== undefined))

/** Epoch milliseconds of a time argument, which the schema has found to be one. */
export const timeArgument = (text: string | null | undefined): number | undefined =>
  text === null || text === undefined ? undefined : parseIso(text)
