import type { migrations } from '../../migrations/index.ts'
import { TidingsError } from '../../shared/errors.ts'
import { rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { liveProcesses, named } from '../keys/master-keys.ts'

/**
 * Call it in the transaction that stores what only processes with a migration can carry out. Throws UNAVAILABLE while a
 * process lives that does not know the migration; from the commit on, such a process refuses to start.
 *
 * @param what what such a process cannot do, for the message
 */
export const requireEveryProcessKnows = async (
  trx: Sql,
  migration: keyof typeof migrations & string,
  what: string,
): Promise<void> => {
  const [done] = await rows<{ needs: string | null }>(trx, 'SELECT needs FROM knex_migrations WHERE name = ?', [
    migration,
  ])
  if (done?.needs) return
  // A process that starts locks these too.
  await rows(trx, `SELECT name FROM master_keys ORDER BY name${dialectOf(trx).forUpdate}`)
  const old = (await liveProcesses(trx)).filter(({ knows }) => knows === null || knows < migration)
  if (old.length > 0) {
    throw new TidingsError(
      'UNAVAILABLE',
      `A process of an earlier version runs, and cannot ${what}: ${old.map(named).join(' and ')}. ` +
        'Try again when the upgrade is complete. Nothing was done.',
      { retryAfterSeconds: 45 },
    )
  }
  await run(trx, 'UPDATE knex_migrations SET needs = ? WHERE name = ? AND needs IS NULL', [migration, migration])
}
