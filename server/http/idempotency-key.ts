import { badInput, TidingsError } from '../../shared/errors.ts'
import type { ErrorCode } from '../../shared/vocabulary.ts'
import { type Answer, Claim, claimKey, isKey } from '../domain/idempotency.ts'
import type { Service } from '../graphql/context.ts'
import type { Authenticated } from './authenticate.ts'
import { answerError } from './request-id.ts'

type Answerable = Parameters<typeof answerError>[0] & {
  state: Authenticated
  req: { headersDistinct: Record<string, string[] | undefined> }
}

/**
 * The claim of a mutation on its Idempotency-Key; undefined without a key. A function if the mutation must not run: it
 * answers the request with the stored answer, or with what is wrong with the key. Header and statuses follow
 * draft-ietf-httpapi-idempotency-key-header.
 */
export const claimOf = async (
  ctx: Answerable,
  { database, sealer, tools }: Service,
): Promise<Claim | (() => void) | undefined> => {
  const given = ctx.req.headersDistinct['idempotency-key']
  if (given === undefined) return undefined
  const [key, ...others] = given
  if (key === undefined || others.length > 0 || !isKey(key)) return () => answerError(ctx, 400, noKey())
  try {
    const { token, rawBody, giveUpAt } = ctx.state
    const request = { accessTokenId: token.id, key, body: rawBody, giveUpAt }
    const found = await claimKey({ sql: database.knex, sealer, clock: tools.clock }, request)
    return found instanceof Claim ? found : () => replay(ctx, found)
  } catch (error) {
    if (!(error instanceof TidingsError) || error.code === 'UNAVAILABLE') throw error
    return () => refuse(ctx, error)
  }
}

/** Stores the answer, unless it has an error that a repeated request may not have. */
export const endClaim = (claim: Claim, codes: Set<unknown>, answer: Answer): Promise<void> =>
  PASSING.some(code => codes.has(code)) ? claim.release() : claim.finish(answer)

const PASSING: readonly ErrorCode[] = ['INTERNAL_SERVER_ERROR', 'UNAVAILABLE', 'RATE_LIMITED']

const noKey = (): TidingsError =>
  badInput(
    'Idempotency-Key',
    'must be given once, with 1 to 255 printable ASCII characters, such as a new UUID for each mutation',
  )

const replay = (ctx: Answerable, { status, contentType, body }: Answer): void => {
  ctx.status = status
  ctx.set('Content-Type', contentType)
  ctx.set('Idempotency-Replayed', 'true')
  ctx.body = body
}

const refuse = (ctx: Answerable, error: TidingsError): void => {
  const isRunning = error.code === 'CONFLICT'
  if (isRunning) ctx.set('Retry-After', '1')
  answerError(ctx, isRunning ? 409 : 422, error)
}
