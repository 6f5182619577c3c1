import type { Knex } from 'knex'

// A webhook's epoch increases with each change that ends its pending deliveries or those in flight. A row of the queue
// holds the epoch in which it was created. Rows older than `ended_epoch` have to be cancelled; other rows of a past
// epoch go to another URL. `sweeping`: rows of a past epoch may exist. `recovered`: the row comes after new ones.

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
