import { type Database, rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'

// All processes share one count of the requests taken from a window. A taken request counts, used or not.

/** What a process got of a token's window, and the state of the count. */
export type Taken = { got: number; windowStart: number; taken: number }

/**
 * Takes up to `wanted` requests of a token's window. A process whose clock is behind takes from the window that others
 * have already begun, and does not begin it again.
 */
export const takeRequests = (
  database: Database,
  tokenId: string,
  { windowStart, wanted, limit }: { windowStart: number; wanted: number; limit: number },
): Promise<Taken> =>
  database.transaction(async trx => {
    await run(
      trx,
      `INSERT INTO rate_limits (access_token_id, window_start, taken)
       VALUES (?, ?, ?)${dialectOf(trx).onDuplicate(['access_token_id'])}
       taken = CASE WHEN window_start < ? THEN ? ELSE taken + ? END,
       window_start = CASE WHEN window_start < ? THEN ? ELSE window_start END`,
      [tokenId, windowStart, wanted, windowStart, wanted, wanted, windowStart, windowStart],
    )
    const [found] = await rows<{ taken: number; window_start: number }>(
      trx,
      'SELECT taken, window_start FROM rate_limits WHERE access_token_id = ?',
      [tokenId],
    )
    const { taken, window_start } = found!
    const got = Math.max(0, Math.min(taken, limit) - (taken - wanted))
    return { got, windowStart: Number(window_start), taken: Math.min(taken, limit) }
  })
