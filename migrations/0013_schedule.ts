import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'
import { addIndex, dropIndex } from './indexes.ts'

// The progress of opening a quarter's reports, and indexes from which the scheduler reads only the work that is left.
// They end in the id, after which the next batch continues, on SQLite too.

export const up = async (knex: Knex): Promise<void> => {
  const { storageEngine, key } = dialectOf(knex)
  if (!(await knex.schema.hasTable('report_quarters'))) {
    await knex.schema.createTable('report_quarters', t => {
      if (storageEngine) t.engine(storageEngine)
      t.specificType('quarter', key(6)).primary()
      t.specificType('passed_project_id', key(36)).notNullable().defaultTo('')
      t.bigInteger('pass_began_at')
      t.bigInteger('completed_at')
    })
  }
  await addIndex(knex, 'project_reports', 'project_reports_owed', ['status', 'overdue_at', 'due_date', 'id'])
  await dropIndex(knex, 'project_reports', 'project_reports_by_status')
  await addIndex(knex, 'access_tokens', 'access_tokens_to_expire', ['expiry_event_at', 'expires_at', 'id'])
  await dropIndex(knex, 'access_tokens', 'access_tokens_by_expiry')
}

export const down = async (knex: Knex): Promise<void> => {
  await addIndex(knex, 'access_tokens', 'access_tokens_by_expiry', ['expires_at'])
  await dropIndex(knex, 'access_tokens', 'access_tokens_to_expire')
  await addIndex(knex, 'project_reports', 'project_reports_by_status', ['status', 'overdue_at', 'due_date'])
  await dropIndex(knex, 'project_reports', 'project_reports_owed')
  // Tokens revoked before they expired have 0 here; by the older rule they emit no event either.
  await knex('access_tokens').where('expiry_event_at', 0).update({ expiry_event_at: null })
  await knex.schema.dropTableIfExists('report_quarters')
}
