import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

/**
 * `example`: made on demand, and belongs to no organisation. `about_webhook_id`: an event about a webhook, which those
 * are told of who see that webhook, and never itself. Of such types it is asked which webhooks name them.
 */
export const up = async (knex: Knex): Promise<void> => {
  const { key } = dialectOf(knex)
  // Where a change of a table is no part of a transaction, a migration that was killed finds some of it made.
  const add = async (column: string, type: string): Promise<boolean> => {
    if (await knex.schema.hasColumn('events', column)) return false
    await knex.raw(`ALTER TABLE events ADD COLUMN ${column} ${type}`)
    return true
  }
  await add('example', 'SMALLINT NOT NULL DEFAULT 0')
  if (await add('about_webhook_id', key(36))) {
    await knex.schema.alterTable('webhook_events', t => t.index('event_type', 'webhook_events_by_type'))
  }
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.alterTable('webhook_events', t => t.dropIndex([], 'webhook_events_by_type'))
  for (const column of ['example', 'about_webhook_id']) await knex.raw(`ALTER TABLE events DROP COLUMN ${column}`)
}
