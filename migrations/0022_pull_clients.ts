import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

// Which clients wait at which process for the deliveries of which webhook: server/domain/pull-clients.ts. `latest`: who
// came last, as JSON.

export const up = async (knex: Knex): Promise<void> => {
  const { key, text, storageEngine } = dialectOf(knex)
  if (!(await knex.schema.hasTable('pull_clients'))) {
    await knex.schema.createTable('pull_clients', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('webhook_id', key(36)).notNullable()
      t.specificType('process_id', key(36)).notNullable()
      t.integer('waiting').notNullable()
      t.specificType('latest', text(1024)).notNullable()
      t.primary(['webhook_id', 'process_id'])
    })
  }
  await addIndex(knex, 'pull_clients', 'pull_clients_by_process', ['process_id'])
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTableIfExists('pull_clients')
}
