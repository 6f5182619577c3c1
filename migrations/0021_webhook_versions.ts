import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

// What a webhook was before a change: see server/domain/webhook-versions.ts. Of the URL and the lists a row has only
// what the change has replaced.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key, text, longText } = dialectOf(knex)
  if (!(await knex.schema.hasTable('webhook_versions'))) {
    await knex.schema.createTable('webhook_versions', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('webhook_id', key(36)).notNullable()
      t.bigInteger('until_at').notNullable()
      t.specificType('status', key(16)).notNullable()
      t.specificType('url', text(2048))
      t.specificType('events', longText)
      t.specificType('organisation_ids', longText)
      t.specificType('project_ids', longText)
      t.specificType('access_token_id', key(36))
      t.primary(['webhook_id', 'until_at'])
    })
  }
  await addIndex(knex, 'webhook_versions', 'webhook_versions_by_time', ['until_at'])
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTableIfExists('webhook_versions')
}
