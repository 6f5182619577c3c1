import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

// How many deliveries were created in each hour, and the hours that have changed since they were counted: see
// server/domain/delivery-hours.ts.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  if (!(await knex.schema.hasTable('delivery_hours'))) {
    await knex.schema.createTable('delivery_hours', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('webhook_id', key(36)).notNullable()
      t.bigInteger('hour_at').notNullable()
      t.specificType('status', key(16)).notNullable()
      t.bigInteger('number').notNullable()
      t.primary(['webhook_id', 'hour_at', 'status'])
    })
  }
  await addIndex(knex, 'delivery_hours', 'delivery_hours_by_time', ['hour_at'])
  if (!(await knex.schema.hasTable('delivery_hour_changes'))) {
    await knex.schema.createTable('delivery_hour_changes', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('id', key(36)).primary()
      t.bigInteger('hour_at').notNullable()
    })
  }
  await addIndex(knex, 'delivery_hour_changes', 'delivery_hour_changes_by_time', ['hour_at'])
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTableIfExists('delivery_hour_changes')
  await knex.schema.dropTableIfExists('delivery_hours')
}
