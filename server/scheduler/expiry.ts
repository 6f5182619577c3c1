import type { Knex } from 'knex'
import { rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { recordEvent } from '../domain/events.ts'
import type { Step } from './step.ts'

/** Tokens of one transaction, which locks the webhooks of their events. */
const TOKENS = 10

/** Stands for the time of a token that was revoked before it expired and emits no event. */
const NONE_OWED = 0

type Expired = { id: string; sees_all_organisations: number; expires_at: number; revoked_at: number | null }

/** Emits `token_expired` once for each access token that has expired. A revoked token emits none. */
export const expireTokens: Step = {
  name: 'emit token_expired',
  everyMs: 5_000,
  largestPart: 1 / 2,
  begin({ database, clock, onEvents }) {
    // Continues after the rows of this round.
    let last = { id: '', expires_at: Number.MIN_SAFE_INTEGER }
    return async () => {
      const told = await database.transaction(async trx => {
        const expired = await rows<Expired>(
          trx,
          `SELECT id, sees_all_organisations, expires_at, revoked_at FROM access_tokens
           WHERE expiry_event_at IS NULL
             AND ((expires_at = ? AND id > ?) OR (expires_at > ? AND expires_at <= ?))
           ORDER BY expires_at, id LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
          [last.expires_at, last.id, last.expires_at, clock.now(), TOKENS],
        )
        for (const token of expired) await tell(trx, token, clock.now)
        return expired
      })
      if (told.length === 0) return false
      last = told.at(-1)!
      onEvents()
      return true
    }
  },
}

const tell = async (trx: Knex.Transaction, token: Expired, now: () => number): Promise<void> => {
  const { id, sees_all_organisations: seesAll, expires_at: expiresAt, revoked_at: revokedAt } = token
  // A token revoked after its expiry has still expired.
  const wasRevoked = revokedAt !== null && Number(revokedAt) <= Number(expiresAt)
  const won = await run(trx, 'UPDATE access_tokens SET expiry_event_at = ? WHERE id = ? AND expiry_event_at IS NULL', [
    wasRevoked ? NONE_OWED : now(),
    id,
  ])
  if (won === 0 || wasRevoked) return
  const seen = await rows<{ organisation_id: string }>(
    trx,
    'SELECT organisation_id FROM access_token_organisations WHERE access_token_id = ?',
    [id],
  )
  const organisationIds = seesAll === 1 ? 'all' : seen.map(row => row.organisation_id)
  await recordEvent(trx, { type: 'token_expired', organisationIds, payload: { accessTokenId: id } }, now)
}
