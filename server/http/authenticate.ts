import DataLoader from 'dataloader'
import type { Middleware, ParameterizedContext } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently, REQUEST_MS } from '../database/patience.ts'
import { findByApiKeys, noteUses, openApiSecret, type SealedAccessToken } from '../domain/access-tokens.ts'
import type { AccessToken } from '../domain/permissions.ts'
import { REPLAYED } from '../domain/used-signatures.ts'
import type { Sealer } from '../keys/seal.ts'
import { Bodies, isTooLarge, refuseBody, type WithBody } from './body.ts'
import { bodyRefusalOf, type Refusal, readSigned, refusalOf, type Signed } from './hmac.ts'
import { type Answerable, answerError } from './request-id.ts'

/** The state for later middleware: the signature data, which is not yet checked. */
export type Named = WithBody & { signed: Signed; apiKey: string }

/** The state for later middleware: the caller and the signature. */
export type Authenticated = Named & {
  token: AccessToken
  signature: string
  /** Until when to wait for the database before the request runs, by `performance.now()`. */
  giveUpAt: number
}

/** A dummy secret to open and compute with, so that an unknown key takes as long as a known one. */
const NO_SECRET = Buffer.alloc(32).toString('base64')
const NOBODY = 'no access token'
/** The longest that a request waits for its token's use to be recorded. */
const NOTE_MS = 500

/** After a body that took longer to arrive, the token is checked again. */
const LOOK_AGAIN_MS = 500

/**
 * Reads who a request says it is from, and refuses it if it does not say.
 *
 * @param signedAs the URL whose host and path clients sign, if a reverse proxy may pass on others
 */
export const readSignature =
  (signedAs?: URL): Middleware<Named> =>
  (ctx, next) => {
    if (isTooLarge(ctx.req)) return refuseBody(ctx)
    const signed = readSigned(signedAs ? { ...ctx.headers, host: signedAs.host } : ctx.headers)
    if ('reason' in signed) return refuse(ctx, signed)
    ctx.state.signed = signed
    ctx.state.apiKey = signed.apiKey
    return next()
  }

type Given = {
  database: Database
  sealer: Sealer
  clock: Clock
  /** As of `readSignature`. */
  signedAs?: URL | undefined
}

/**
 * Passes requests with a correct and fresh signature of a valid token; refuses all others with 401 and the reason. The
 * header is checked first, so that the body of an unsigned request is not read.
 */
export const authenticate = ({ database, sealer, clock, signedAs }: Given): Middleware<Authenticated> => {
  const sealedNoSecret = sealer.seal(NO_SECRET, NOBODY)
  const byApiKey = tokensByApiKey(database)
  const noteUse = noteUses(database)
  const bodies = new Bodies()
  const prefix = signedAs?.pathname.replace(/\/+$/, '') ?? ''

  const judge = async (ctx: Context, signed: Signed): Promise<AccessToken | Refusal> => {
    const giveUpAt = performance.now() + REQUEST_MS
    const sealed = await patiently(() => byApiKey.load(signed.apiKey), giveUpAt)
    const apiSecret = sealed ? openApiSecret(sealer, sealed) : sealer.open(sealedNoSecret, NOBODY)
    const covered = { method: ctx.method, pathAndQuery: prefix + ctx.url }
    const refusal = refusalOf(covered, signed, { token: sealed?.token, apiSecret }, clock.now())
    ctx.state.giveUpAt = giveUpAt
    return refusal ?? sealed!.token
  }

  return async (ctx, next) => {
    const { signed } = ctx.state
    const judged = await judge(ctx, signed)
    if ('reason' in judged) return refuse(ctx, judged)
    const judgedAt = performance.now()
    const fault = await bodies.hold(ctx.req, ctx.res, judged.id, async body => {
      const now = clock.now()
      const refusal = bodyRefusalOf(body, signed)
      if (refusal) return refuse(ctx, refusal)
      const stillJudged = performance.now() - judgedAt < LOOK_AGAIN_MS ? judged : await judge(ctx, signed)
      if ('reason' in stillJudged) return refuse(ctx, stillJudged)
      ctx.state.rawBody = body
      ctx.state.token = stillJudged
      ctx.state.signature = signed.signature
      // A read-only database is no reason to refuse a query; a mutation fails by itself.
      await patiently(() => noteUse(stillJudged, now), performance.now() + NOTE_MS).catch(error => {
        if (!(error instanceof TidingsError)) throw error
      })
      await next()
    })
    if (fault) refuseBody(ctx, fault)
  }
}

type Context = ParameterizedContext<Authenticated>

/**
 * One statement looks up the keys of all requests of one turn of the event loop. It runs after the last of them
 * arrived, and nothing is cached, so that a token revoked by any process before a request is refused.
 */
const tokensByApiKey = ({ knex }: Database) =>
  new DataLoader<string, SealedAccessToken | undefined>(
    async apiKeys => {
      const found = await findByApiKeys(knex, apiKeys)
      return apiKeys.map(apiKey => found.get(apiKey))
    },
    { cache: false, maxBatchSize: LOOKUPS_A_STATEMENT, batchScheduleFn: look => setImmediate(look) },
  )

const LOOKUPS_A_STATEMENT = 100

export const refuseReplay = (ctx: Parameters<typeof refuse>[0]): void => refuse(ctx, REPLAYED)

const refuse = (ctx: Answerable, { message, ...details }: Refusal): void => {
  const description = message.replaceAll(/["\\]/g, "'").replaceAll(/[^\x20-\x7e]/g, '?')
  ctx.set('WWW-Authenticate', `HMAC-SHA256 error="${details.reason}", error_description="${description}"`)
  answerError(ctx, 401, new TidingsError('UNAUTHENTICATED', message, details))
}
