import { v7 as uuid } from 'uuid'
import { notFound } from '../../shared/errors.ts'
import { rows, type Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'

export type UserRow = { id: string; name: string }

/** Users belong to no organisation: every access token sees them. */
export const users: Resource = {
  name: 'users',
  table: 'users',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
  },
}

export const requireUser = async (sql: Sql, id: string): Promise<UserRow> => {
  const [user] = await rows<UserRow>(sql, 'SELECT id, name FROM users WHERE id = ?', [id])
  if (!user) throw notFound('user', [id])
  return user
}

/** Renames a user, or creates one, under the id if one is given. */
export const upsertUser = async (
  { trx, now }: Change,
  { id = uuid(), name }: { id?: string; name: string },
): Promise<UserRow> => {
  checkName(name)
  if (await trx('users').where({ id }).first('id')) await trx('users').where({ id }).update({ name, updated_at: now })
  else await trx('users').insert({ id, name, created_at: now, updated_at: now })
  return { id, name }
}
