import type { Knex } from 'knex'

/**
 * Deliveries that the receiver has refused as handled before: recovery leaves their events out. A process of the
 * version before neither reads nor writes the column, and may run beside it.
 */
export const up = async (knex: Knex): Promise<void> => {
  // Where a change of a table is no part of a transaction, a migration that was killed finds it made.
  if (await knex.schema.hasColumn('deliveries', 'handled_before')) return
  await knex.raw('ALTER TABLE deliveries ADD COLUMN handled_before SMALLINT NOT NULL DEFAULT 0')
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('deliveries', 'handled_before'))) return
  await knex.raw('ALTER TABLE deliveries DROP COLUMN handled_before')
}
