import type { Knex } from 'knex'
import { addIndex, dropIndex } from './indexes.ts'

// Since when a webhook heals itself, null if it does not: of what was dropped before, nothing is sent again by itself.
// The index lists these webhooks: server/domain/unnoted.ts.

export const up = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('webhooks', 'automatic_since'))) {
    await knex.schema.alterTable('webhooks', t => {
      t.bigInteger('automatic_since')
    })
  }
  await addIndex(knex, 'webhooks', 'webhooks_by_automatic_since', ['automatic_since', 'id'])
  await knex('webhooks')
    .where({ recovery: 'automatic' })
    .whereNull('automatic_since')
    .update({ automatic_since: knex.ref('updated_at') })
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('webhooks', 'automatic_since'))) return
  await dropIndex(knex, 'webhooks', 'webhooks_by_automatic_since')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN automatic_since')
}
