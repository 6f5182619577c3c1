import { parseIso } from '../../../shared/time.ts'
import type { Permission } from '../../../shared/vocabulary.ts'
import { entryOf } from '../../domain/audit.ts'
import type { Context } from '../context.ts'
import { needs, type Resolver } from '../fields.ts'

/** By name. The schema has checked their arguments before they see them. */
export type Mutations = Record<string, Resolver<unknown, never>>

/**
 * A mutation that only tokens with a permission reach. It is handed the arguments that were given: null and absent are
 * the same. It answers with what the ones before it in the same document have changed.
 *
 * @param work does it, and returns what its last change has returned: sent again under its Idempotency-Key, that is
 *   what it has come to, and the work is not done again
 * @param answer makes the answer of that
 */
export const mutation = <Args extends object, Outcome = unknown>(
  permission: Permission,
  work: (args: Args, context: Context) => Promise<Outcome>,
  answer: (outcome: Outcome, context: Context) => unknown = outcome => outcome,
  madeBy?: MadeBy,
): Resolver<unknown, never> =>
  resumable<Args, Outcome>(permission, async (args, context, earlier) => earlier ?? work(args, context), answer, madeBy)

/** What a change, by what it returns, has made or concerns, for the audit log: where the arguments do not tell. */
// biome-ignore lint/suspicious/noExplicitAny: what a change returns is known where it is said
type MadeBy = (changed: any) => string | undefined

/** As `mutation`, of several changes: sent again, it goes on from what its last one has returned. */
export const resumable = <Args extends object, Outcome>(
  permission: Permission,
  work: (args: Args, context: Context, earlier: Outcome | undefined) => Promise<Outcome>,
  answer: (outcome: Outcome, context: Context) => unknown,
  madeBy?: MadeBy,
): Resolver<unknown, never> =>
  needs(permission, async (_root, args: object, context, info) => {
    const { outcomes, isMade, claim } = context
    const name = String(info.path.key)
    if (isMade) return answer(outcomes[name] as Outcome, context)
    context.forget()
    context.entry = { ...entryOf(context.token.id, context.requestId, info.fieldName, given(args)), madeBy }
    const outcome = await work(given(args) as Args, context, claim?.enter(name) as Outcome | undefined)
    outcomes[name] = outcome
    return answer(outcome, context)
  })

const given = (args: object): object =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== null && value !== undefined))

/** Epoch milliseconds of a time argument, which the schema has found to be one. */
export const timeArgument = (text: string | undefined): number | undefined =>
  text === undefined ? undefined : parseIso(text)
