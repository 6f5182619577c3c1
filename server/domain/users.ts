import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import type { UserRow } from './resources.ts'

/** Renames a user, or creates one, under the id if one is given. */
export const upsertUser = async (
  { trx, now }: Change,
  { id = newId(now), name }: { id?: string; name: string },
): Promise<UserRow> => {
  checkName(name)
  if (await trx('users').where({ id }).first('id')) await trx('users').where({ id }).update({ name, updated_at: now })
  else await trx('users').insert({ id, name, created_at: now, updated_at: now })
  return { id, name }
}
