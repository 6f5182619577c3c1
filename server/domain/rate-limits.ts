import { type Database, rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'

/**
 * Takes `portion` requests of a token's window in the count that all processes share, and answers how many have been
 * taken by all, these included. A process whose clock is behind takes from the next window, which others are in
 * already, and does not begin it again.
 */
export const takeRequests = (
  database: Database,
  tokenId: string,
  windowStart: number,
  portion: number,
): Promise<number> =>
  database.transaction(async trx => {
    await run(
      trx,
      `INSERT INTO rate_limits (access_token_id, window_start, taken)
       VALUES (?, ?, ?)${dialectOf(trx).onDuplicate(['access_token_id'])}
       taken = CASE WHEN window_start < ? THEN ? ELSE taken + ? END,
       window_start = CASE WHEN window_start < ? THEN ? ELSE window_start END`,
      [tokenId, windowStart, portion, windowStart, portion, portion, windowStart, windowStart],
    )
    const [found] = await rows<{ taken: number }>(trx, 'SELECT taken FROM rate_limits WHERE access_token_id = ?', [
      tokenId,
    ])
    return found!.taken
  })
