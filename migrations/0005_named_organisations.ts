import type { Knex } from 'knex'
import { dialectOf } from '../server/database/dialect.ts'

// The organisation that a project was in when a webhook named it, so that moving the project gives nobody else the
// webhook.

export const up = async (knex: Knex): Promise<void> => {
  const { key } = dialectOf(knex)
  await knex.raw(`ALTER TABLE webhook_projects ADD COLUMN organisation_id ${key(36)}`)
  await knex.raw(
    `UPDATE webhook_projects SET organisation_id =
       (SELECT p.organisation_id FROM projects p WHERE p.id = webhook_projects.project_id)`,
  )
}

export const down = async (knex: Knex): Promise<void> => {
  await knex.raw('ALTER TABLE webhook_projects DROP COLUMN organisation_id')
}
