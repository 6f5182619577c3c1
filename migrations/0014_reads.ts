import type { Knex } from 'knex'
import { addIndex, dropIndex } from './indexes.ts'

// Indexes for support's questions: the deliveries of one webhook and of one status, in the order of time.

const INDEXES = [
  ['webhook_id', 'deliveries_of_webhook_by_time'],
  ['status', 'deliveries_of_status_by_time'],
] as const

export const up = async (knex: Knex): Promise<void> => {
  for (const [column, name] of INDEXES) await addIndex(knex, 'deliveries', name, [column, 'created_at', 'id'])
}

export const down = async (knex: Knex): Promise<void> => {
  for (const [, name] of INDEXES) await dropIndex(knex, 'deliveries', name)
}
