import { newId } from '../ids.ts'
import type { Change } from './change.ts'
import { checkName } from './names.ts'
import { requireSeesAll } from './permissions.ts'
import { type OrganisationRow, organisations } from './resources.ts'
import { requireVisible } from './visibility.ts'

/** Renames an organisation, or creates it, under the id if one is given. Only a token that sees all can create one. */
export const upsertOrganisation = async (
  { trx, token, now }: Change,
  { id: given, name }: { id?: string; name: string },
): Promise<OrganisationRow> => {
  checkName(name)
  // To a token that sees some, an id out of its sight and one that never was are the same.
  if (given && !token.seesAllOrganisations) await requireVisible(trx, token, organisations, [given])
  const id = given ?? newId(now)
  if (await trx('organisations').where({ id }).first('id')) {
    await trx('organisations').where({ id }).update({ name, updated_at: now })
  } else {
    requireSeesAll(token, 'create an organisation')
    await trx('organisations').insert({ id, name, created_at: now, updated_at: now })
  }
  return { id, name }
}
