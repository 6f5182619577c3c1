import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// A mutation that was sent with an Idempotency-Key: which request it was, the results of its fields so far, and the
// final answer. Secrets in it are sealed. `owner` is the request that works on it until `leased_until`; `version`
// increases with each result that is recorded.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key, longText } = dialectOf(knex)
  await knex.schema.createTable('idempotency_keys', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('access_token_id', key(36)).notNullable()
    t.specificType('key_hash', key(44)).notNullable()
    t.specificType('request_hash', key(44)).notNullable()
    t.specificType('owner', key(36))
    t.bigInteger('leased_until').notNullable()
    t.integer('version').notNullable().defaultTo(0)
    t.specificType('outcomes_sealed', longText)
    t.specificType('answer_sealed', longText)
    t.bigInteger('expires_at').notNullable().index('idempotency_keys_by_expiry')
    t.primary(['access_token_id', 'key_hash'])
  })
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTable('idempotency_keys')
}
