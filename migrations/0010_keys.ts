import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// Records which master keys exist and which process has which, so that a key can be replaced while every process can
// open everything sealed. `retired_at`: nothing is sealed with the key any more. A revoked signing key is kept without
// its private half, so that its revocation is known.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key, text } = dialectOf(knex)
  await knex.schema.createTable('master_keys', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('name', key(8)).primary()
    t.bigInteger('retired_at')
  })
  await knex.schema.createTable('processes', t => {
    if (storageEngine) t.engine(storageEngine)
    t.specificType('id', key(36)).primary()
    t.specificType('host', text(255)).notNullable()
    t.integer('pid').notNullable()
    t.specificType('version', key(32)).notNullable()
    t.specificType('roles', key(64)).notNullable()
    // The names of the process's master keys; it seals with the first.
    t.specificType('master_keys', text(255)).notNullable()
    t.bigInteger('started_at').notNullable()
    t.bigInteger('seen_at').notNullable()
  })
  await knex.raw('ALTER TABLE signing_keys ADD COLUMN revoked_at bigint')
  const used = new Set<string>()
  for (const [table, column] of SEALED) {
    const found = await knex(table)
      .whereNotNull(column)
      .distinct<{ name: string }[]>(knex.raw(`SUBSTR(${column}, 4, 8) AS name`))
    for (const { name } of found) used.add(name)
  }
  await knex('master_keys').delete()
  if (used.size > 0) await knex('master_keys').insert([...used].map(name => ({ name })))
}

/** The form of sealed text before this migration: `v1.` and the name of the key. */
const SEALED = [
  ['access_tokens', 'secret_sealed'],
  ['signing_keys', 'private_key_sealed'],
  ['idempotency_keys', 'answer_sealed'],
  ['idempotency_keys', 'outcomes_sealed'],
] as const

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.dropTable('processes')
  await knex.schema.dropTable('master_keys')
  await knex.raw('ALTER TABLE signing_keys DROP COLUMN revoked_at')
}
