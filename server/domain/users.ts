import { rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { requireSeesAll } from './permissions.ts'
import type { UserRow } from './resources.ts'
import { insertedFirst } from './upsert.ts'

/**
 * Renames a user, or creates one, under the id if one is given. Users belong to no organisation, so only a token that
 * sees all organisations can rename one. Throws FORBIDDEN or BAD_USER_INPUT.
 */
export const upsertUser = async (
  { trx, token, now }: Change,
  { id: given, name }: { id?: string; name: string },
): Promise<UserRow> => {
  checkName(name)
  const id = given ?? newId(now())
  const locked = async (): Promise<UserRow | undefined> =>
    (await rows<UserRow>(trx, `SELECT id, name FROM users WHERE id = ?${dialectOf(trx).forUpdate}`, [id]))[0]
  const found = given === undefined ? undefined : await locked()
  if (!found) {
    const time = now()
    const isFirst = await insertedFirst(trx('users').insert({ id, name, created_at: time, updated_at: time }))
    if (isFirst) return { id, name }
  }
  const before = found ?? (await locked())!
  if (before.name !== name) {
    requireSeesAll(token, 'rename a user')
    await run(trx, 'UPDATE users SET name = ?, updated_at = ? WHERE id = ?', [name, now(), id])
  }
  return { id, name }
}
