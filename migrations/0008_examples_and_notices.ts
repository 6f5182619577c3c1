import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

/**
 * `example`: the event was made on demand and belongs to no organisation. `about_webhook_id`: the event is about a
 * webhook; it goes to webhooks whose token sees that one, never to that one. For such types the sender looks up the
 * webhooks that name them.
 */
export const up = async (knex: Knex): Promise<void> => {
  const { key } = dialectOf(knex)
  // Where DDL is not transactional, a migration that was killed may have made some of these changes.
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
