import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { organisations, type ProjectRow, projects } from './resources.ts'
import { requireVisible } from './visibility.ts'

/** Changes a project, or creates it, under the id if one is given. */
export const upsertProject = async (
  { trx, token, now }: Change,
  { id = newId(now), organisationId, name }: { id?: string; organisationId: string; name: string },
): Promise<ProjectRow> => {
  checkName(name)
  await requireVisible(trx, token, organisations, [organisationId])
  if (await trx('projects').where({ id }).first('id')) {
    await requireVisible(trx, token, projects, [id])
    await trx('projects').where({ id }).update({ organisation_id: organisationId, name, updated_at: now })
  } else {
    await trx('projects').insert({ id, organisation_id: organisationId, name, created_at: now, updated_at: now })
  }
  return { id, organisation_id: organisationId, name }
}
