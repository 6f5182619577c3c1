import { parseIso } from '../../../shared/time.ts'
import type { Permission } from '../../../shared/vocabulary.ts'
import type { Context } from '../context.ts'
import { needs, type Resolver } from '../fields.ts'

/** By name. The schema has checked their arguments before they see them. */
export type Mutations = Record<string, Resolver<unknown, never>>

/**
 * A mutation that only tokens with a permission reach. It is handed the arguments that were given: null and absent are
 * the same. It answers with what the ones before it in the same document have changed.
 */
export const mutation = <Args extends object>(
  permission: Permission,
  work: (args: Args, context: Context) => unknown,
): Resolver<unknown, never> =>
  needs(permission, (_root, args: object, context) => {
    context.forget()
    return work(given(args) as Args, context)
  })

const given = (args: object): object =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== null && value !== undefined))

/** Epoch milliseconds of a time argument, which the schema has found to be one. */
export const timeArgument = (text: string | undefined): number | undefined =>
  text === undefined ? undefined : parseIso(text)
