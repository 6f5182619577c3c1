import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// Who changed what, and when. A row also marks the signature that carried the change as used, for as long as the clock
// window would accept it again: the mark is unique, and leaves the index afterwards. A row without an operation is only
// such a mark.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key, text, longText } = dialectOf(knex)
  await knex.schema.createTable('audit_log', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('id', key(36)).primary()
    t.bigInteger('created_at').notNullable().index('audit_log_by_time')
    t.specificType('signature_hash', key(44)).unique({ indexName: 'audit_log_by_signature' })
    t.specificType('access_token_id', key(36))
    t.specificType('actor', text(255))
    t.specificType('operation', key(64)).notNullable()
    t.specificType('arguments', longText).notNullable()
    t.specificType('subject_id', key(64))
    t.specificType('request_id', text(128))
  })
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTable('audit_log')
}
