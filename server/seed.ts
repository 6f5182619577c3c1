import { type Database, insertMany, run } from './database/connect.ts'
import { quarterBefore, startOfQuarter } from './domain/quarters.ts'
import { newId } from './ids.ts'

const ORGANISATIONS = ['Acme Relief', 'Borealis Trust', 'Cedar Foundation']
const PROJECTS = ['Clean Water', 'School Meals']
const USERS = ['Ada Okafor', 'Bruno Silva', 'Chiara Rossi']

/** Samples have existed for a quarter, whose report their projects owe. */
const timesOf = (now: number) => {
  const madeAt = startOfQuarter(quarterBefore(now))
  return { created_at: madeAt, updated_at: madeAt }
}

/** Creates the sandbox's samples if there are none: three organisations with two projects each, and three users. */
export const seedSamples = async (database: Database, now: number): Promise<void> => {
  await database.transaction(async trx => {
    if (await trx('organisations').first('id')) return
    const times = timesOf(now)
    const organisations = ORGANISATIONS.map(name => ({ id: newId(now), name, ...times }))
    await trx('organisations').insert(organisations)
    await trx('projects').insert(
      organisations.flatMap(({ id, name }) =>
        PROJECTS.map(project => ({
          id: newId(now),
          organisation_id: id,
          name: `${name.split(' ')[0]} ${project}`,
          ...times,
        })),
      ),
    )
    await trx('users').insert(USERS.map(name => ({ id: newId(now), name, ...times })))
  })
}

export type SeedCounts = { organisations: number; projects: number; users: number }

const ROWS_A_STATEMENT = 1_000

const FIRST = ['Acme', 'Borealis', 'Cedar', 'Delta', 'Élan', 'Fjord', 'Gamma', 'Harbour', 'Indigo', 'Juniper']
const SECOND = ['Relief', 'Trust', 'Foundation', 'Alliance', 'Network', 'Initiative', 'Fund', 'Works']

/**
 * Adds made-up organisations, projects and users, for tests of size. Names combine a few words with a number; projects
 * are distributed over the added organisations.
 *
 * @param onProgress called with the number of rows written to a table
 */
export const seedMany = async (
  database: Database,
  counts: SeedCounts,
  now: number,
  onProgress: (table: string, written: number) => void,
): Promise<void> => {
  const times = timesOf(now)
  const name = (index: number) =>
    `${FIRST[index % FIRST.length]} ${SECOND[Math.floor(index / FIRST.length) % SECOND.length]} ${index + 1}`

  const insert = async (table: string, count: number, row: (index: number) => object): Promise<void> => {
    for (let from = 0; from < count; from += ROWS_A_STATEMENT) {
      const length = Math.min(ROWS_A_STATEMENT, count - from)
      const rows = Array.from({ length }, (_, index) => row(from + index))
      await insertMany(database.knex, table, rows)
      onProgress(table, from + length)
    }
  }

  const organisationIds = Array.from({ length: counts.organisations }, () => newId(now))
  await insert('organisations', counts.organisations, index => ({
    id: organisationIds[index],
    name: name(index),
    ...times,
  }))
  if (counts.projects > 0 && organisationIds.length === 0) {
    organisationIds.push(...(await database.knex('organisations').limit(100_000).pluck('id')))
    if (organisationIds.length === 0) throw new Error('projects need organisations: add --organisations')
  }
  await insert('projects', counts.projects, index => ({
    id: newId(now),
    organisation_id: organisationIds[index % organisationIds.length],
    name: `Project ${name(index)}`,
    ...times,
  }))
  // Makes the scheduler check again which reports are owed.
  if (counts.projects > 0) await run(database.knex, 'DELETE FROM report_quarters')
  await insert('users', counts.users, index => ({ id: newId(now), name: `User ${index + 1}`, ...times }))
}
