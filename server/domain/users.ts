import { notFound } from '../../shared/errors.ts'
import { rows, type Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'

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
