import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// What an attempt was, as JSON (`delivery/evidence.ts`): one column, written by the insert that is made anyway. A
// process of an earlier version leaves it null.

export const up = async (knex: Knex): Promise<void> => {
  if (await knex.schema.hasColumn('attempts', 'evidence')) return
  await knex.raw(`ALTER TABLE attempts ADD COLUMN evidence ${dialectOf(knex).longText}`)
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('attempts', 'evidence'))) return
  await knex.raw('ALTER TABLE attempts DROP COLUMN evidence')
}
