import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before, it } from 'node:test'
import { connect, rows } from '../../server/database/connect.ts'
import { createAccessToken, findByApiKeys, noteUses } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { describeEachEngine, migratedDatabase, NOT_ON_SQLITE, type TestDatabase } from '../support/databases.ts'

describeEachEngine('the use of a token', engine => {
  let given: TestDatabase
  before(async () => {
    given = await migratedDatabase(engine)
  })
  after(() => given.drop())

  it('is not noted while a change has locked it, and nobody waits for the change', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const { database, url } = given
    const now = Date.now()
    const made = { name: 'one', permissions: ['read' as const] }
    const { id, apiKey } = await createAccessToken(database.knex, createSealer([randomBytes(32)]), made, now)
    const { token } = (await findByApiKeys(database.knex, [apiKey])).get(apiKey)!
    const changes = await connect(url)
    t.after(() => changes.close())
    await changes.transaction(async trx => {
      await rows(trx, 'SELECT id FROM access_tokens WHERE id = ? FOR UPDATE', [id])
      await noteUses(database)(token, now)
    })
    const noted = () => database.knex('access_tokens').where({ id }).first('last_used_at')
    assert.equal((await noted()).last_used_at, null)
    await noteUses(database)(token, now)
    assert.equal((await noted()).last_used_at, now)
  })
})
