import { rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { organisations, type ProjectRow, projects } from './resources.ts'
import { insertedFirst } from './upsert.ts'
import { requireVisible } from './visibility.ts'

/** Changes a project, or creates it, under the id if one is given. Throws NOT_FOUND or BAD_USER_INPUT. */
export const upsertProject = async (
  { trx, token, now }: Change,
  { id: given, organisationId, name }: { id?: string; organisationId: string; name: string },
): Promise<ProjectRow> => {
  checkName(name)
  await requireVisible(trx, token, organisations, [organisationId])
  const id = given ?? newId(now())
  const isThere = given !== undefined && (await lockProject(trx, id, 'forUpdate')) !== undefined
  const row = { id, organisation_id: organisationId, name }
  if (!isThere) {
    const time = now()
    const isFirst = await insertedFirst(trx('projects').insert({ ...row, created_at: time, updated_at: time }))
    if (isFirst) return row
    await lockProject(trx, id, 'forUpdate')
  }
  // Its present organisation. The row is locked, so that no other transaction can move the project from here on.
  await requireVisible(trx, token, projects, [id])
  await run(trx, 'UPDATE projects SET organisation_id = ?, name = ?, updated_at = ? WHERE id = ?', [
    organisationId,
    name,
    now(),
    id,
  ])
  return row
}

/** The present project, locked until the transaction ends. */
export const lockProject = async (
  trx: Sql,
  id: string,
  lock: 'forShare' | 'forUpdate',
): Promise<ProjectRow | undefined> => {
  const [project] = await rows<ProjectRow>(trx, `SELECT * FROM projects WHERE id = ?${dialectOf(trx)[lock]}`, [id])
  return project
}
