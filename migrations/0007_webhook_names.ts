import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex } from './indexes.ts'

/**
 * Adds a webhook's name and labels. A deleted webhook keeps its row, so that its remaining deliveries still show where
 * they went.
 */
export const up = async (knex: Knex): Promise<void> => {
  const { text } = dialectOf(knex)
  // Where DDL is not transactional, a migration that was killed may have made some of these changes.
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
  // A webhook is disabled before it is deleted. The schema before this one knows it as disabled.
  await knex.schema.alterTable('webhooks', t => t.dropIndex([], 'webhooks_by_deletion'))
  for (const column of ['name', 'labels', 'deleted_at']) await knex.raw(`ALTER TABLE webhooks DROP COLUMN ${column}`)
}
