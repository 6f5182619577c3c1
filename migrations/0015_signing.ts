import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// What the requests of a webhook carry besides the token: signatures of Standard Webhooks, and static headers.
// `request_sealed`: the secrets and the headers' values, sealed under the master key; null if there are none.
// `webhook_headers`: the headers' names. `knows`: the latest migration that a process knows, null before this one, so
// that a webhook is not given what a living process cannot send.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key, longText } = dialectOf(knex)
  await knex.raw(`ALTER TABLE webhooks ADD COLUMN signing ${key(16)} NOT NULL DEFAULT 'token'`)
  await knex.raw(`ALTER TABLE webhooks ADD COLUMN request_sealed ${longText}`)
  await knex.raw(`ALTER TABLE processes ADD COLUMN knows ${key(64)}`)
  await knex.schema.createTable('webhook_headers', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('webhook_id', key(36)).notNullable()
    t.specificType('name', key(64)).notNullable()
    t.primary(['webhook_id', 'name'])
  })
}

/** Every webhook is signed with the token alone again, and sends no static headers. */
export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTable('webhook_headers')
  await knex.raw('ALTER TABLE processes DROP COLUMN knows')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN request_sealed')
  await knex.raw('ALTER TABLE webhooks DROP COLUMN signing')
}
