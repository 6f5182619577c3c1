import type { Knex } from 'knex'

/**
 * Marks deliveries that the receiver refused as already handled; recovery leaves their events out. A process of the
 * previous version neither reads nor writes the column, and may run beside this one.
 */
export const up = async (knex: Knex): Promise<void> => {
  // Where DDL is not transactional, a migration that was killed may already have added the column.
  if (await knex.schema.hasColumn('deliveries', 'handled_before')) return
  await knex.raw('ALTER TABLE deliveries ADD COLUMN handled_before SMALLINT NOT NULL DEFAULT 0')
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('deliveries', 'handled_before'))) return
  await knex.raw('ALTER TABLE deliveries DROP COLUMN handled_before')
}
