import { rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { requireSeesAll } from './permissions.ts'
import { type OrganisationRow, organisations } from './resources.ts'
import { insertedFirst } from './upsert.ts'
import { requireVisible } from './visibility.ts'

/**
 * Renames an organisation, or creates it, under the id if one is given. Only a token that sees all organisations can
 * create one. Throws FORBIDDEN, NOT_FOUND or BAD_USER_INPUT.
 */
export const upsertOrganisation = async (
  { trx, token, now }: Change,
  { id: given, name }: { id?: string; name: string },
): Promise<OrganisationRow> => {
  checkName(name)
  // For a limited token, an id out of its sight equals an unknown one.
  if (given && !token.seesAllOrganisations) await requireVisible(trx, token, organisations, [given])
  const id = given ?? newId(now())
  const isThere =
    given !== undefined &&
    (await rows(trx, `SELECT id FROM organisations WHERE id = ?${dialectOf(trx).forUpdate}`, [id])).length > 0
  if (!isThere) {
    requireSeesAll(token, 'create an organisation')
    const time = now()
    const isFirst = await insertedFirst(trx('organisations').insert({ id, name, created_at: time, updated_at: time }))
    if (isFirst) return { id, name }
  }
  await run(trx, 'UPDATE organisations SET name = ?, updated_at = ? WHERE id = ?', [name, now(), id])
  return { id, name }
}
