import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// The ids of webhooks whose rows are gone: nobody else may take one.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  if (await knex.schema.hasTable('ended_webhooks')) return
  await knex.schema.createTable('ended_webhooks', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('id', key(36)).primary()
    t.specificType('access_token_id', key(36)).notNullable()
    t.bigInteger('ended_at').notNullable()
  })
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTableIfExists('ended_webhooks')
}
