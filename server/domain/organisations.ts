import type { Knex } from 'knex'
import { v7 as uuid } from 'uuid'
import { notFound, TidingsError } from '../../shared/errors.ts'
import { marks, rows, type Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, whereOrganisationVisible } from './access-tokens.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'

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
        'SELECT organisation_id AS id FROM access_token_organisations WHERE access_token_id = ? ' +
          `AND organisation_id IN (${marks(ids)})`,
        [token.id, ...ids],
      )
  const missing = ids.filter(id => !found.some(row => row.id === id))
  if (missing.length > 0) throw notFound('organisation', missing)
}

/** Renames an organisation, or creates it, under the id if one is given. Only a token that sees all can create one. */
export const upsertOrganisation = async (
  { trx, token, now }: Change,
  { id: given, name }: { id?: string; name: string },
): Promise<OrganisationRow> => {
  checkName(name)
  // To a token that sees some, an id out of its sight and one that never was are the same.
  if (given && !token.seesAllOrganisations) await requireOrganisations(trx, token, [given])
  const id = given ?? uuid()
  if (await trx('organisations').where({ id }).first('id')) {
    await trx('organisations').where({ id }).update({ name, updated_at: now })
  } else {
    requireSeesAll(token, 'create an organisation')
    await trx('organisations').insert({ id, name, created_at: now, updated_at: now })
  }
  return { id, name }
}

/** Throws FORBIDDEN for a token that sees only some organisations, where what it asks for concerns them all. */
export const requireSeesAll = (token: AccessToken, what: string): void => {
  if (token.seesAllOrganisations) return
  throw new TidingsError('FORBIDDEN', `Only an access token that sees all organisations can ${what}.`)
}
