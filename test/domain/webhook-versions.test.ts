import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { insertMany } from '../../server/database/connect.ts'
import { keepVersion } from '../../server/domain/webhook-versions.ts'
import { describeEachEngine } from '../support/databases.ts'
import { leastCpuMsOf } from '../support/effort.ts'
import { startTestServer, type TestServer } from '../support/server.ts'
import { addWebhooks } from '../support/webhooks.ts'

describeEachEngine('the versions of a webhook', engine => {
  let server: TestServer
  before(async () => {
    server = await startTestServer(engine)
  })
  after(() => server.stop())

  it('cost in proportion to the organisations that it names, with 20,000 too', async () => {
    const { knex } = server.database
    const { id: accessTokenId } = await server.token()
    const costOf = async (count: number): Promise<number> => {
      const organisationIds = Array.from({ length: count }, () => randomUUID()).sort()
      await insertMany(
        knex,
        'organisations',
        organisationIds.map(id => ({ id, name: 'Acme', created_at: 0, updated_at: 0 })),
      )
      const [id] = await addWebhooks(knex, [{ accessTokenId, organisationIds }])
      const webhook = { id: id!, status: 'active', url: 'http://127.0.0.1:9/' } as const
      const keep = () => keepVersion(knex, webhook, { untilAt: 1, accessTokenId, organisationIds })
      await keep()
      return leastCpuMsOf(keep, 10)
    }
    const [few, many] = [await costOf(5_000), await costOf(20_000)]
    assert.ok(many < 8 * few, `${many} ms against ${few} ms`)
    assert.equal((await knex('webhook_versions').count({ count: '*' }))[0]?.count, 0)
  })
})
