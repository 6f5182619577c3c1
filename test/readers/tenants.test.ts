import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import type { Database } from '../../server/database/connect.ts'
import { Tenants } from '../../server/readers/tenants.ts'
import { describeEachEngine } from '../support/databases.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

it('several tenants are those that have asked within the last ten seconds', () => {
  let now = 0
  const tenants = new Tenants(undefined as unknown as Database, () => now)
  tenants.notice('a')
  tenants.notice('a')
  assert.ok(!tenants.areSeveral)
  tenants.notice('b')
  assert.ok(tenants.areSeveral)
  now = 9_999
  tenants.notice('b')
  assert.ok(tenants.areSeveral)
  now = 10_000
  assert.ok(!tenants.areSeveral)
  tenants.notice('a')
  assert.ok(tenants.areSeveral)
})

describeEachEngine('the tenant of a token', engine => {
  let server: TestServer
  before(async () => {
    server = await startTestServer(engine)
  })
  after(() => server.stop())

  it('is the same for tokens of one organisation, and for those that see all', async () => {
    const { database } = server
    const [acme, other] = await Promise.all([addProject(database), addProject(database)])
    const tenants = new Tenants(database)
    const tenantOf = async (organisationIds?: string[]) => {
      const { id } = await server.token(organisationIds ? { organisationIds } : {})
      const token = { id, seesAllOrganisations: organisationIds === undefined } as Parameters<Tenants['of']>[0]
      const tenant = await tenants.of(token)
      assert.equal(await tenants.of(token), tenant)
      return tenant
    }
    const [first, second] = [await tenantOf([acme.organisationId]), await tenantOf([acme.organisationId])]
    assert.equal(first, second)
    assert.equal(await tenantOf(), await tenantOf())
    const rest = [await tenantOf([other.organisationId]), await tenantOf(), await tenantOf([]), await tenantOf([])]
    assert.equal(new Set([first, ...rest]).size, 5)
  })
})
