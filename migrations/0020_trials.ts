import type { Knex } from 'knex'

// Whether the last healing of a webhook led to no acknowledgement: see server/domain/missed.ts. A process of an earlier
// version queues everything at once.

export const up = async (knex: Knex): Promise<void> => {
  if (await knex.schema.hasColumn('webhook_recoveries', 'on_trial')) return
  await knex.schema.alterTable('webhook_recoveries', t => {
    t.integer('on_trial').notNullable().defaultTo(0)
  })
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('webhook_recoveries', 'on_trial'))) return
  await knex.raw('ALTER TABLE webhook_recoveries DROP COLUMN on_trial')
}
