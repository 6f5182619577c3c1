import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// The trace that an event belongs to (W3C Trace Context): its deliveries go on with it, whichever process sends them. A
// process that knows nothing of it leaves it out.

export const up = async (knex: Knex): Promise<void> => {
  if (await knex.schema.hasColumn('events', 'traceparent')) return
  await knex.raw(`ALTER TABLE events ADD COLUMN traceparent ${dialectOf(knex).key(55)}`)
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('events', 'traceparent'))) return
  await knex.raw('ALTER TABLE events DROP COLUMN traceparent')
}
