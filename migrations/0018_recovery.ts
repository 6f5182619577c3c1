import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// Webhooks that heal themselves: see server/domain/healing.ts. One row for each webhook with `recovery: automatic` that
// has missed something. `missed_since`: the time of the first missed event. `began_at`: when it was first dropped.
// `due_at`: when the next ping is due, or the lease ends; NEVER when it is over. `answered_at`: when a ping was
// answered; from then on missed events are queued, up to `until_time`, and have been up to `after_time` and `after_id`.
// `again_since`: the time of the first event that was dropped meanwhile.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  await knex.raw(`ALTER TABLE webhooks ADD COLUMN recovery ${key(16)} NOT NULL DEFAULT 'on_demand'`)
  await knex.schema.createTable('webhook_recoveries', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('webhook_id', key(36)).primary()
    t.bigInteger('missed_since').notNullable()
    t.bigInteger('began_at').notNullable()
    t.bigInteger('due_at').notNullable().index('webhook_recoveries_by_due_time')
    t.integer('pings').notNullable().defaultTo(0)
    t.specificType('lease', key(36))
    t.bigInteger('answered_at')
    t.bigInteger('after_time')
    t.specificType('after_id', key(36))
    t.bigInteger('until_time')
    t.bigInteger('again_since')
    t.integer('queued').notNullable().defaultTo(0)
    t.bigInteger('recovered_at')
    t.bigInteger('given_up_at')
  })
}

/** Webhooks are recovered on demand alone again. */
export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTable('webhook_recoveries')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN recovery')
}
