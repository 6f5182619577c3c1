import type { Knex } from 'knex'

// A webhook's epoch grows with each change that ends what was pending or under way for it; a row of the queue has the
// epoch it was made for. Rows of an epoch before `ended_epoch` are to be cancelled, others of an epoch that is past go
// to another url. `sweeping`: there may be rows of an epoch that is past. `recovered`: goes behind what is new.

const COLUMNS = [
  ['webhooks', 'epoch', 'integer'],
  ['webhooks', 'ended_epoch', 'integer'],
  ['webhooks', 'sweeping', 'smallint'],
  ['delivery_queue', 'epoch', 'integer'],
  ['delivery_queue', 'recovered', 'smallint'],
] as const

export const up = async (knex: Knex): Promise<void> => {
  for (const [table, column, type] of COLUMNS) {
    await knex.raw(`ALTER TABLE ${table} ADD COLUMN ${column} ${type} NOT NULL DEFAULT 0`)
  }
  await knex.schema.alterTable('webhooks', t => t.index('sweeping', 'webhooks_by_sweeping'))
  await knex.schema.alterTable('delivery_queue', t => t.dropIndex([], 'delivery_queue_by_webhook'))
  await knex.schema.alterTable('delivery_queue', t =>
    t.index(['webhook_id', 'epoch', 'recovered', 'due_at'], 'delivery_queue_by_webhook'),
  )
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.alterTable('webhooks', t => t.dropIndex([], 'webhooks_by_sweeping'))
  await knex.schema.alterTable('delivery_queue', t => t.dropIndex([], 'delivery_queue_by_webhook'))
  for (const [table, column] of COLUMNS) await knex.raw(`ALTER TABLE ${table} DROP COLUMN ${column}`)
  await knex.schema.alterTable('delivery_queue', t => t.index(['webhook_id', 'due_at'], 'delivery_queue_by_webhook'))
}
