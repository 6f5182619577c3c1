import { marks, rows, type Sql } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'
import { ON_DEMAND, SEES } from './events.ts'

/** An event, and the token of a webhook that should receive it. */
export type Sight = { accessTokenId: string; seesAllOrganisations: boolean; eventId: string }

/**
 * The pending deliveries whose webhook's token no longer sees the event: the token has lost an organisation, or the
 * event's project has moved out of its sight. One statement for up to 200 tokens, none for tokens that see all.
 */
export const outOfSight = async <T>(sql: Sql, owed: T[], sightOf: (one: T) => Sight): Promise<Set<T>> => {
  const limited = owed.filter(one => !sightOf(one).seesAllOrganisations)
  const byToken = [...Map.groupBy(limited, one => sightOf(one).accessTokenId)]
  const unseen = new Set<string>()
  for (let from = 0; from < byToken.length; from += STATEMENT_LIMITS.selects) {
    const asked = byToken.slice(from, from + STATEMENT_LIMITS.selects).map(([tokenId, own]) => ({
      tokenId,
      eventIds: [...new Set(own.map(one => sightOf(one).eventId))],
    }))
    const found = await rows<{ token_id: string; event_id: string }>(
      sql,
      asked.map(({ eventIds }) => unseenOf(eventIds)).join(' UNION ALL '),
      asked.flatMap(({ tokenId, eventIds }) => [tokenId, ...eventIds]),
    )
    for (const { token_id, event_id } of found) unseen.add(`${token_id} ${event_id}`)
  }
  return new Set(
    limited.filter(one => {
      const { accessTokenId, eventId } = sightOf(one)
      return unseen.has(`${accessTokenId} ${eventId}`)
    }),
  )
}

const unseenOf = (eventIds: string[]): string =>
  `SELECT t.id AS token_id, e.id AS event_id FROM access_tokens t JOIN events e
   WHERE t.id = ? AND e.id IN (${marks(eventIds)}) AND NOT ${ON_DEMAND} AND NOT ${SEES}`
