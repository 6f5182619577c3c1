import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// How far the opening of a quarter's reports has come, and indexes in which the schedule reads what is left to be done
// and no more. They end in the id: that is what one batch goes on after, on SQLite too.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  // Where a change of a table is no part of a transaction, a migration that was killed finds it made.
  if (!(await knex.schema.hasTable('report_quarters'))) {
    await knex.schema.createTable('report_quarters', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('quarter', key(6)).primary()
      t.specificType('passed_project_id', key(36)).notNullable().defaultTo('')
      t.bigInteger('pass_began_at')
      t.bigInteger('completed_at')
    })
  }
  await knex.schema.alterTable('project_reports', t =>
    t.index(['status', 'overdue_at', 'due_date', 'id'], 'project_reports_owed'),
  )
  await knex.schema.alterTable('project_reports', t => t.dropIndex([], 'project_reports_by_status'))
  await knex.schema.alterTable('access_tokens', t =>
    t.index(['expiry_event_at', 'expires_at', 'id'], 'access_tokens_to_expire'),
  )
  await knex.schema.alterTable('access_tokens', t => t.dropIndex([], 'access_tokens_by_expiry'))
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.schema.alterTable('access_tokens', t => t.index('expires_at', 'access_tokens_by_expiry'))
  await knex.schema.alterTable('access_tokens', t => t.dropIndex([], 'access_tokens_to_expire'))
  await knex.schema.alterTable('project_reports', t =>
    t.index(['status', 'overdue_at', 'due_date'], 'project_reports_by_status'),
  )
  await knex.schema.alterTable('project_reports', t => t.dropIndex([], 'project_reports_owed'))
  // Tokens that were revoked before they expired have 0 there, and emit none by the older rule either.
  await knex('access_tokens').where('expiry_event_at', 0).update({ expiry_event_at: null })
  await knex.schema.dropTable('report_quarters')
}
