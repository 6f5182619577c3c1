import type { Knex } from 'knex'
import { addIndex, dropIndex } from './indexes.ts'

// By it, a token finds the webhooks that name projects of its organisations: server/domain/visibility.ts.

const INDEX = ['webhook_projects', 'webhook_projects_by_organisation'] as const

export const up = async (knex: Knex): Promise<void> => {
  // Of a process that did not know the column yet, while others did.
  await knex.raw(
    `UPDATE webhook_projects SET organisation_id =
       (SELECT p.organisation_id FROM projects p WHERE p.id = webhook_projects.project_id)
     WHERE organisation_id IS NULL`,
  )
  await addIndex(knex, ...INDEX, ['organisation_id'])
}

export const down = (knex: Knex): Promise<void> => dropIndex(knex, ...INDEX)
