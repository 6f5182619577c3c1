import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before, it } from 'node:test'
import { connect, type Database, rows } from '../../server/database/connect.ts'
import type { Transaction } from '../../server/database/transaction.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { findWanting, type NewEvents } from '../../server/domain/matching.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { leastCpuMsOf } from '../support/effort.ts'
import { rowsRead } from '../support/rows-read.ts'
import { addProject } from '../support/server.ts'
import { addWebhooks } from '../support/webhooks.ts'

const OTHERS = 3_000
/** Far fewer than the others: some for each webhook that is found. */
const FEW = 200
const TIMES = 30

describeEachEngine('the webhooks that want an event', engine => {
  let given: TestDatabase
  let database: Database
  let projectId: string
  let organisationId: string
  /** The ids of webhooks that choose everything, the organisation, and the project. */
  let ofAll: string
  let ofOrganisation: string
  let ofProject: string
  before(async () => {
    given = await migratedDatabase(engine)
    const { knex } = given.database
    const [chosen, other] = [await addProject(given.database), await addProject(given.database)]
    ;({ projectId, organisationId } = chosen)
    const token = { name: 'test', permissions: ['webhooks' as const] }
    const { id: accessTokenId } = await createAccessToken(knex, createSealer([randomBytes(32)]), token, 0)
    const choices = [{}, { organisationIds: [organisationId] }, { projectIds: [projectId] }]
    const own = choices.map(choice => ({ accessTokenId, createdAt: 0, ...choice }))
    ;[ofAll, ofOrganisation, ofProject] = (await addWebhooks(knex, own)) as [string, string, string]
    await addWebhooks(knex, Array(OTHERS).fill({ accessTokenId, createdAt: 0, projectIds: [other.projectId] }))
    // A connection of its own, whose count is that of one question at a time.
    database = engine === 'sqlite' ? given.database : await connect(given.url, { poolSize: 1 })
  })
  after(async () => {
    if (database !== given?.database) await database?.close()
    await given?.drop()
  })

  const findsAlone = async (events: NewEvents, expected: string[]): Promise<void> => {
    const before = await rowsRead(database)
    const found = await database.transaction(trx => findWanting(trx, events))
    const read = (await rowsRead(database)) - before
    assert.deepEqual(found.map(({ id }) => id).toSorted(), expected.toSorted())
    assert.ok(read < FEW, `${read} rows were read`)
    // SQLite does not count them.
    if (!database.dialect.isEmbedded) return
    const oneMs = await msOf(trx => findWanting(trx, events))
    const allMs = await msOf(trx => rows(trx, 'SELECT COUNT(url) FROM webhooks WHERE deleted_at IS NULL'))
    assert.ok(oneMs < allMs, `${oneMs} ms, and ${allMs} ms to read every webhook`)
  }

  const msOf = (ask: (trx: Transaction) => Promise<unknown>): Promise<number> =>
    leastCpuMsOf(() =>
      database.transaction(async trx => {
        for (let n = 0; n < TIMES; n++) await ask(trx)
      }),
    )

  it('are found without the thousands of others, for an event of a project', () =>
    findsAlone({ type: 'project_report_quarterly_submitted', projectIds: [projectId] }, [
      ofAll,
      ofOrganisation,
      ofProject,
    ]))

  it('are found without the thousands of others, for an event of an organisation', () =>
    findsAlone({ type: 'token_expired', organisationIds: [organisationId] }, [ofAll, ofOrganisation]))

  it('are found without the thousands of others, for an event of all organisations', () =>
    findsAlone({ type: 'token_expired', organisationIds: 'all' }, [ofAll, ofOrganisation]))
})
