import type { Knex } from 'knex'
import { type Dialect, dialectOf } from '../server/database/dialect.ts'

// Webhooks whose deliveries are taken by clients: see server/domain/pull-time.ts. `taken`: who has taken a queue row,
// as JSON (server/delivery/pull/taken.ts). `pull_pings`: pings that a client has to answer before its webhook is
// stored.

const COLUMNS = ({ key, text }: Pick<Dialect, 'key' | 'text'>) =>
  [
    ['webhooks', 'transport', `${key(8)} NOT NULL DEFAULT 'push'`],
    ['delivery_queue', 'taken', text(1024)],
  ] as const

export const up = async (knex: Knex): Promise<void> => {
  const dialect = dialectOf(knex)
  const { key, longText, storageEngine } = dialect
  for (const [table, column, type] of COLUMNS(dialect)) {
    await knex.raw(`ALTER TABLE ${table} ADD COLUMN ${column} ${type}`)
  }
  await knex.schema.createTable('pull_pings', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('delivery_id', key(36)).primary()
    t.specificType('webhook_id', key(36)).notNullable()
    t.specificType('access_token_id', key(36)).notNullable()
    t.specificType('message', longText).notNullable()
    t.bigInteger('created_at').notNullable()
    t.bigInteger('taken_at')
    t.specificType('taken_by', key(36))
    t.bigInteger('answered_at')
    t.specificType('answer', longText)
    t.index(['webhook_id', 'access_token_id'], 'pull_pings_by_webhook')
  })
}

/** Pulled webhooks are disabled: their URL leads nowhere. */
export const down = async (knex: Knex): Promise<void> => {
  // Where it was killed later, the column is gone already.
  if (await knex.schema.hasColumn('webhooks', 'transport')) await disablePulled(knex)
  await knex.schema.dropTable('pull_pings')
  for (const [table, column] of COLUMNS(dialectOf(knex))) {
    await knex.raw(`ALTER TABLE ${table} DROP COLUMN ${column}`)
  }
}

const disablePulled = async (knex: Knex): Promise<void> => {
  await knex.raw(`UPDATE webhooks SET status = 'disabled', held_until = NULL, ended_epoch = epoch + 1,
    epoch = epoch + 1, sweeping = 1 WHERE transport = 'pull'`)
}
