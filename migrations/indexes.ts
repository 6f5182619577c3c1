import type { Knex } from 'knex'

// Where DDL is not transactional, a migration that was killed may have added some indexes and dropped others.

const DUPLICATE_KEY_NAME = 1061
const NO_SUCH_KEY = 1091

/** Adds an index, unless it is there. */
export const addIndex = (knex: Knex, table: string, name: string, columns: string[]): Promise<void> =>
  unless(DUPLICATE_KEY_NAME, () => knex.schema.alterTable(table, t => t.index(columns, name)))

/** Drops an index, unless it is gone. */
export const dropIndex = (knex: Knex, table: string, name: string): Promise<void> =>
  unless(NO_SUCH_KEY, () => knex.schema.alterTable(table, t => t.dropIndex([], name)))

const unless = async (code: number, change: () => PromiseLike<unknown>): Promise<void> => {
  try {
    await change()
  } catch (error) {
    if ((error as { errno?: number }).errno !== code) throw error
  }
}
