import { marks, rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { recordAlike } from '../domain/events.ts'
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
      const emitted = await database.transaction(async trx => {
        // One range in the order of its index: SQLite would sort the rows of two, all that are left, for each batch.
        const expired = await rows<Expired>(
          trx,
          `SELECT id, sees_all_organisations, expires_at, revoked_at FROM access_tokens
           WHERE expiry_event_at IS NULL
             AND expires_at >= ? AND expires_at <= ? AND (expires_at > ? OR id > ?)
           ORDER BY expires_at, id LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
          [last.expires_at, clock.now(), last.expires_at, last.id, TOKENS],
        )
        await tell(trx, expired, clock.now)
        return expired
      })
      if (emitted.length === 0) return false
      last = emitted.at(-1)!
      onEvents()
      return true
    }
  },
}

/** @param expired locked by this transaction, without an event yet */
const tell = async (trx: Transaction, expired: Expired[], now: () => number): Promise<void> => {
  // A token revoked after its expiry has still expired.
  const { revoked = [], owed = [] } = Object.groupBy(expired, ({ expires_at: expiresAt, revoked_at: revokedAt }) =>
    revokedAt !== null && Number(revokedAt) <= Number(expiresAt) ? 'revoked' : 'owed',
  )
  await mark(trx, revoked, NONE_OWED)
  if (owed.length === 0) return
  await mark(trx, owed, now())
  const ids = owed.map(({ id }) => id)
  const seen = await rows<{ access_token_id: string; organisation_id: string }>(
    trx,
    `SELECT access_token_id, organisation_id FROM access_token_organisations
     WHERE access_token_id IN (${marks(ids)}) ORDER BY access_token_id, organisation_id`,
    ids,
  )
  const organisations = new Map(
    [...Map.groupBy(seen, row => row.access_token_id)].map(([id, own]) => [id, own.map(row => row.organisation_id)]),
  )
  const expiring = owed.map(({ id, sees_all_organisations: seesAll }) => ({
    payload: { accessTokenId: id },
    organisationIds: seesAll === 1 ? ('all' as const) : (organisations.get(id) ?? []),
  }))
  for (const alike of Map.groupBy(expiring, ({ organisationIds }) => String(organisationIds)).values()) {
    const { organisationIds } = alike[0]!
    const payloads = alike.map(({ payload }) => payload)
    await recordAlike(trx, { type: 'token_expired', organisationIds, payloads }, now)
  }
}

/** Of tokens that are locked, by their ids alone: on SQLite any other condition would be what they are looked up by. */
const mark = async (trx: Transaction, tokens: Expired[], at: number): Promise<void> => {
  if (tokens.length === 0) return
  const ids = tokens.map(({ id }) => id)
  await run(trx, `UPDATE access_tokens SET expiry_event_at = ? WHERE id IN (${marks(ids)})`, [at, ...ids])
}
