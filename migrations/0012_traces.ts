import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// The trace of an event (W3C Trace Context), continued by its deliveries in whichever process sends them. A process of
// an earlier version ignores it.

export const up = async (knex: Knex): Promise<void> => {
  if (await knex.schema.hasColumn('events', 'traceparent')) return
  await knex.raw(`ALTER TABLE events ADD COLUMN traceparent ${dialectOf(knex).key(55)}`)
}

export const down = async (knex: Knex): Promise<void> => {
  if (!(await knex.schema.hasColumn('events', 'traceparent'))) return
  await knex.raw('ALTER TABLE events DROP COLUMN traceparent')
}
