import { createHash } from 'node:crypto'
import DataLoader from 'dataloader'
import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import {
  bodyHash,
  checkSignedHeaders,
  parseAuthorization,
  parseRequestDate,
  signature,
  signaturesMatch,
  stringToSign,
} from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import type { RefusalReason } from '../../shared/vocabulary.ts'
import type { Clock } from '../clock.ts'
import { type Database, isDuplicate, run } from '../database/connect.ts'
import {
  type AccessToken,
  findByApiKeys,
  openApiSecret,
  type SealedAccessToken,
  touchAccessToken,
} from '../domain/access-tokens.ts'
import type { Sealer } from '../keys/seal.ts'
import type { WithBody } from './body.ts'
import { answer, type RequestState } from './request-id.ts'

export const CLOCK_WINDOW_MS = 5 * 60_000

/** What the middleware after this one finds: who calls, and with which signature. */
export type Authenticated = WithBody & { token: AccessToken; signature: string }

/** A secret to open and compute with when there is none, so that an unknown key costs what a wrong signature costs. */
const NO_SECRET = Buffer.alloc(32).toString('base64')
const NOBODY = 'no access token'

/**
 * Lets through requests with a signature that is right and fresh, of a
 * token that is valid now; refuses all others with 401 and the reason.
 */
export const authenticate = ({
  database,
  sealer,
  clock,
}: {
  database: Database
  sealer: Sealer
  clock: Clock
}): Middleware<Authenticated> => {
  const sealedNoSecret = sealer.seal(NO_SECRET, NOBODY)
  const byApiKey = tokensByApiKey(database)
  return async (ctx, next) => {
    const refusal = await check()
    if (refusal) refuse(ctx, refusal)
    else await next()

    async function check(): Promise<Refusal | undefined> {
      const header = ctx.get('authorization')
      if (header === '') {
        return { reason: 'missing', message: 'The request is not signed: it has no Authorization header.' }
      }
      const authorization = parseAuthorization(header)
      if ('fault' in authorization) return { reason: 'malformed', message: authorization.fault }
      const signed = checkSignedHeaders(authorization.signedHeaders, ctx.headers)
      if ('fault' in signed) return { reason: 'malformed', message: signed.fault }
      const date = parseRequestDate(ctx.get(signed.dateHeader))
      if (date === undefined) {
        return { reason: 'malformed', message: `${signed.dateHeader} is neither an HTTP-date nor an ISO 8601 time.` }
      }

      const found = await byApiKey.load(authorization.credential)
      const expected = signature(
        found ? openApiSecret(sealer, found) : sealer.open(sealedNoSecret, NOBODY),
        stringToSign({ method: ctx.method, pathAndQuery: ctx.req.url ?? '/', signedValues: signed.signedValues }),
      )
      const matches = signaturesMatch(expected, authorization.signature)
      if (!found) return { reason: 'unknown_key', message: 'No access token has this API key.' }
      if (!matches) {
        return {
          reason: 'bad_signature',
          message:
            'The signature is not that of this request with the secret of this API key. ' +
            '`tidings sign` shows the string to sign.',
        }
      }
      if (!signaturesMatch(bodyHash(ctx.state.rawBody), ctx.get(signed.hashHeader))) {
        return {
          reason: 'body_hash_mismatch',
          message: `${signed.hashHeader} is not the base64 SHA-256 of the body that arrived.`,
        }
      }
      const now = clock.now()
      if (Math.abs(now - date) > CLOCK_WINDOW_MS) {
        const off = Math.round(Math.abs(now - date) / 1000)
        return {
          reason: 'clock_skew',
          message:
            `The request is dated ${off} s ${date < now ? 'before' : 'after'} the server's time, ${toIso(now)}; ` +
            '300 s are allowed. Check the clock.',
          serverTime: toIso(now),
        }
      }
      const { token } = found
      if (token.revokedAt !== null) {
        return { reason: 'revoked', message: `The access token was revoked at ${toIso(token.revokedAt)}.` }
      }
      if (token.expiresAt !== null && token.expiresAt <= now) {
        return { reason: 'expired', message: `The access token expired at ${toIso(token.expiresAt)}.` }
      }
      ctx.state.token = token
      ctx.state.signature = expected
      await touchAccessToken(database.knex, token, now)
      return undefined
    }
  }
}

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

type Refusal = { reason: RefusalReason; message: string; serverTime?: string }

const REPLAYED: Refusal = {
  reason: 'replayed',
  message:
    'This signature has carried a mutation already. Sign each request anew, with an x-nonce if two are made in ' +
    'one second.',
}

/**
 * Marks a signature as having carried a mutation; false if it had already, in whichever process. Remembered for as long
 * as the clock window would let the same request in again.
 */
export const useSignature = async (database: Database, signature: string, now: number): Promise<boolean> => {
  try {
    await run(database.knex, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, ?)', [
      createHash('sha256').update(signature).digest('base64'),
      now + 2 * CLOCK_WINDOW_MS,
    ])
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

export const refuseReplay = (ctx: Parameters<typeof refuse>[0]): void => refuse(ctx, REPLAYED)

const refuse = (
  ctx: { status: number; body: unknown; state: RequestState; set(name: string, value: string): void },
  { message, ...details }: Refusal,
): void => {
  const description = message.replaceAll(/["\\]/g, "'").replaceAll(/[^\x20-\x7e]/g, '?')
  ctx.set('WWW-Authenticate', `HMAC-SHA256 error="${details.reason}", error_description="${description}"`)
  answer(ctx, 401, new TidingsError('UNAUTHENTICATED', message, details))
}
