import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

/**
 * What a webhook is called, and the labels it is found by. One that was deleted keeps its row, by which the deliveries
 * that are kept tell whom they went to.
 */
export const up = async (knex: Knex): Promise<void> => {
  const { text } = dialectOf(knex)
  // Where a change of a table is no part of a transaction, a migration that was killed finds some of it made.
  const add = async (column: string, type: string): Promise<void> => {
    if (await knex.schema.hasColumn('webhooks', column)) return
    await knex.raw(`ALTER TABLE webhooks ADD COLUMN ${column} ${type}`)
  }
  await add('name', text(255))
  await add('labels', `${text(5_000)} NOT NULL DEFAULT '{}'`)
  await add('deleted_at', 'bigint')
  await addIndex(knex, 'webhooks', 'webhooks_by_deletion', ['deleted_at'])
}

export const down = async (knex: Knex): Promise<void> => {
  // What was deleted was disabled first, and is nothing more than that before this.
  await knex.schema.alterTable('webhooks', t => t.dropIndex([], 'webhooks_by_deletion'))
  for (const column of ['name', 'labels', 'deleted_at']) await knex.raw(`ALTER TABLE webhooks DROP COLUMN ${column}`)
}
