import type { Knex } from 'knex'
import { notFound } from '../../shared/errors.ts'
import { marks, rows, type Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, whereOrganisationVisible } from './access-tokens.ts'

export type OrganisationRow = { id: string; name: string }

export const organisations: Resource = {
  name: 'organisations',
  table: 'organisations',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
  },
}

export const visibleOrganisations =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void =>
    whereOrganisationVisible(builder, token, 'organisations.id')

/** Throws NOT_FOUND with those of `ids` that the token does not see. */
export const requireOrganisations = async (sql: Sql, token: AccessToken, ids: string[]): Promise<void> => {
  if (ids.length === 0) return
  const found = token.seesAllOrganisations
    ? await rows<{ id: string }>(sql, `SELECT id FROM organisations WHERE id IN (${marks(ids)})`, ids)
    : await rows<{ id: string }>(
        sql,
        `SELECT organisation_id AS id FROM access_token_organisations WHERE access_token_id = ? AND organisation_id IN (${marks(ids)})`,
        [token.id, ...ids],
      )
  const missing = ids.filter(id => !found.some(row => row.id === id))
  if (missing.length > 0) throw notFound('organisation', missing)
}
