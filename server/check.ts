import type { Config } from './config.ts'
import type { Database } from './database/connect.ts'
import { schemaFault } from './database/migrate.ts'
import { KeyOrderError, namesOf, requireMasterKeys } from './keys/master-keys.ts'

export type StartFault = { message: string; hint: string }

/**
 * Why a server of this release would not become ready with this configuration; undefined if it would. Changes nothing.
 */
export const startFault = async (database: Database, { masterKeys }: Config): Promise<StartFault | undefined> => {
  const schema = await schemaFault(database)
  if (schema !== undefined) return { message: schema, hint: 'Nothing has changed: a server that runs goes on.' }
  const checked = new Error('nothing is kept of the check')
  try {
    await database.transaction(async trx => {
      await requireMasterKeys(trx, namesOf(masterKeys))
      throw checked
    })
  } catch (error) {
    if (error instanceof KeyOrderError) return { message: error.message, hint: error.hint }
    if (error !== checked) throw error
  }
  return undefined
}
