import { parseIso } from '../../../shared/time.ts'
import type { Permission } from '../../../shared/vocabulary.ts'
import { entryOf } from '../../domain/audit.ts'
import type { Context } from '../context.ts'
import { needs, type Resolver } from '../fields.ts'

/** The mutations by name. The schema has checked their arguments. */
export type Mutations = Record<string, Resolver<unknown, never, Context>>

/**
 * A mutation for tokens with a permission. It receives the given arguments; null equals absent. Its answer includes the
 * changes of earlier mutations in the document. Throws FORBIDDEN.
 *
 * @param work makes the change and returns the result of its last change; a repeated request under the Idempotency-Key
 *   gets that result and does not run `work` again
 * @param answer makes the answer from that result
 */
export const mutation = <Args extends object, Outcome = unknown>(
  permission: Permission,
  work: (args: Args, context: Context) => Promise<Outcome>,
  answer: (outcome: Outcome, context: Context) => unknown = outcome => outcome,
  madeBy?: MadeBy,
): Resolver<unknown, never, Context> =>
  resumable<Args, Outcome>(permission, async (args, context, earlier) => earlier ?? work(args, context), answer, madeBy)

/**
 * For the audit log: the id of what a change created or concerns, from its result, if the arguments do not contain it.
 */
// biome-ignore lint/suspicious/noExplicitAny: what a change returns is known where it is said
type MadeBy = (changed: any) => string | undefined

/** The same as `mutation` for several changes: a repeated request continues from the result of the last one. */
export const resumable = <Args extends object, Outcome>(
  permission: Permission,
  work: (args: Args, context: Context, earlier: Outcome | undefined) => Promise<Outcome>,
  answer: (outcome: Outcome, context: Context) => unknown,
  madeBy?: MadeBy,
): Resolver<unknown, never, Context> =>
  needs(permission, async (_root, args: object, context, info) => {
    context.forget()
    context.entry = { ...entryOf(context.token.id, context.requestId, info.fieldName, given(args)), madeBy }
    const earlier = context.claim?.enter(String(info.path.key)) as Outcome | undefined
    return answer(await work(given(args) as Args, context, earlier), context)
  })

const given = (args: object): object =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== null && value !== undefined))

/** The epoch milliseconds of a time argument, which the schema has validated. */
export const timeArgument = (text: string | undefined): number | undefined =>
  text === undefined ? undefined : parseIso(text)
