import type { Knex } from 'knex'
import { v7 as uuid } from 'uuid'
import { notFound } from '../../shared/errors.ts'
import type { Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, whereOrganisationVisible } from './access-tokens.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { organisations, requireOrganisations } from './organisations.ts'

export type ProjectRow = { id: string; name: string; organisation_id: string }

export const projects: Resource = {
  name: 'projects',
  table: 'projects',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    organisationId: { kind: 'column', column: 'organisation_id', type: 'uuid' },
    organisation: { kind: 'related', column: 'organisation_id', resource: () => organisations },
  },
}

export const visibleProjects =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void =>
    whereOrganisationVisible(builder, token, 'projects.organisation_id')

/** The projects with these ids; throws NOT_FOUND with those that the token does not see. */
export const requireProjects = async (sql: Sql, token: AccessToken, ids: string[]): Promise<ProjectRow[]> => {
  if (ids.length === 0) return []
  const found: ProjectRow[] = await sql('projects').whereIn('id', ids).modify(visibleProjects(token))
  const missing = ids.filter(id => !found.some(row => row.id === id))
  if (missing.length > 0) throw notFound('project', missing)
  return found
}

/** Changes a project, or creates it, under the id if one is given. */
export const upsertProject = async (
  { trx, token, now }: Change,
  { id = uuid(), organisationId, name }: { id?: string; organisationId: string; name: string },
): Promise<ProjectRow> => {
  checkName(name)
  await requireOrganisations(trx, token, [organisationId])
  if (await trx('projects').where({ id }).first('id')) {
    await requireProjects(trx, token, [id])
    await trx('projects').where({ id }).update({ organisation_id: organisationId, name, updated_at: now })
  } else {
    await trx('projects').insert({ id, organisation_id: organisationId, name, created_at: now, updated_at: now })
  }
  return { id, organisation_id: organisationId, name }
}
