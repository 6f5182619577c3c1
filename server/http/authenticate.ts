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

/** What the middleware after this one finds: who calls, and with which signature. */
export type Authenticated = WithBody & {
  token: AccessToken
  signature: string
  /** Until then the database is waited for before the request is carried out, by `performance.now()`. */
  giveUpAt: number
}

/** A secret to open and compute with when there is none. */
const NO_SECRET = Buffer.alloc(32).toString('base64')
const NOBODY = 'no access token'
/** A request waits no longer than that to have its token's use noted. */
const NOTE_MS = 500

/** A body that took longer to arrive may have outlasted its token. */
const LOOK_AGAIN_MS = 500

/**
 * Lets through requests with a signature that is right and fresh, of a token that is valid now; refuses all others with
 * 401 and the reason. What the header says is judged first: of a request that is not signed no body is read.
 */
export const authenticate = ({
  database,
  sealer,
  clock,
  signedAs,
}: {
  database: Database
  sealer: Sealer
  clock: Clock
  /** What clients sign host and path of, where a reverse proxy may pass on others. */
  signedAs?: URL | undefined
}): Middleware<Authenticated> => {
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
    if (isTooLarge(ctx.req)) return refuseBody(ctx)
    const signed = readSigned(signedAs ? { ...ctx.headers, host: signedAs.host } : ctx.headers)
    if ('reason' in signed) return refuse(ctx, signed)
    ctx.state.apiKey = signed.apiKey
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
      // A database that can only be read is no reason to refuse a query; what needs more says so.
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
 * One statement answers all requests whose keys have come in one turn of the event loop. It is made after the last of
 * them came, and nothing is kept for later: what was revoked before a request is refused, whichever process revoked it.
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
