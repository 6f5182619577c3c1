import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

/**
 * `example`: made on demand, and belongs to no organisation. `about_webhook_id`: an event about a webhook, which those
 * are told of who see that webhook, and never itself. Of such types it is asked which webhooks name them.
 */
export const up = async (knex: Knex): Promise<void> => {
  const { key } = dialectOf(knex)
  // Where a change of a table is no part of a transaction, a migration that was killed finds some of it made.
  const add = async (column: string, type: string): Promise<void> => {
    if (await knex.schema.hasColumn('events', column)) return
    await knex.raw(`ALTER TABLE events ADD COLUMN ${column} ${type}`)
  }
  await add('example', 'SMALLINT NOT NULL DEFAULT 0')
  await add('about_webhook_id', key(36))
  await addIndex(knex, 'webhook_events', 'webhook_events_by_type', ['event_type'])
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.alterTable('webhook_events', t => t.dropIndex([], 'webhook_events_by_type'))
  for (const column of ['example', 'about_webhook_id']) await knex.raw(`ALTER TABLE events DROP COLUMN ${column}`)
}
