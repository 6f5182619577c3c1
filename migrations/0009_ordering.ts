import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// Webhooks whose deliveries keep the order of their projects: see server/domain/lines.ts. `ordered_since`: when the
// webhook was given an order; 0 if it was created with one. `line`: the line of a queue row that keeps an order.
// `delivery_lines`: one row for each webhook and project, locked by whoever changes the line. `ordered_deliveries`: the
// deliveries of a line in the order of their events, and whether each waits for its turn.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  await knex.raw(`ALTER TABLE webhooks ADD COLUMN ordering ${key(16)} NOT NULL DEFAULT 'none'`)
  await knex.raw('ALTER TABLE webhooks ADD COLUMN ordered_since BIGINT NOT NULL DEFAULT 0')
  await knex.raw(`ALTER TABLE delivery_queue ADD COLUMN line ${key(43)}`)
  await knex.schema.createTable('delivery_lines', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('id', key(43)).primary()
    t.specificType('webhook_id', key(36)).notNullable()
    t.specificType('project_id', key(36)).notNullable()
    t.bigInteger('ordered_since').notNullable().defaultTo(0)
    t.bigInteger('used_at').notNullable().defaultTo(0).index('delivery_lines_by_use')
    t.integer('changes').notNullable().defaultTo(0)
  })
  await knex.schema.createTable('ordered_deliveries', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('delivery_id', key(36)).primary()
    t.specificType('line', key(43)).notNullable()
    t.specificType('waits', 'smallint').notNullable()
    t.bigInteger('event_at').notNullable()
    t.specificType('event_id', key(36)).notNullable()
    t.index(['line', 'waits', 'event_at', 'event_id'], 'ordered_deliveries_by_line')
  })
}

/** Makes every delivery that waits for its turn due at once. */
export const down = async (knex: Knex): Promise<void> => {
  await knex.raw(`UPDATE delivery_queue SET due_at =
    (SELECT d.created_at FROM deliveries d WHERE d.id = delivery_queue.delivery_id) WHERE due_at = 8640000000000000`)
  await knex.raw(`UPDATE deliveries SET next_attempt_at = created_at
    WHERE status = 'pending' AND next_attempt_at IS NULL`)
  await knex.schema.dropTable('ordered_deliveries')
  await knex.schema.dropTable('delivery_lines')
  await knex.raw('ALTER TABLE delivery_queue DROP COLUMN line')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN ordered_since')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN ordering')
}
