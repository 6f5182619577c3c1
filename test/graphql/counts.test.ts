import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('counts', engine => {
  let server: TestServer
  let ids: string[]

  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    ids = []
    for (const name of ['Acme', 'Bolt']) {
      const { data } = await server.graphql('mutation($name: String!) { upsertOrganisation(name: $name) { id } }', {
        name,
      })
      ids.push(data.upsertOrganisation.id)
    }
    for (const [organisation, name] of [
      [0, 'Bridge'],
      [0, 'Tunnel'],
      [0, 'Bridge'],
      [1, 'Bridge'],
    ] as const) {
      await server.graphql(
        'mutation($o: UUID!, $name: String!) { upsertProject(organisationId: $o, name: $name) { id } }',
        { o: ids[organisation], name },
      )
    }
  })
  after(() => server.stop())

  const counts = async (args: string, as?: Parameters<TestServer['graphql']>[2]) => {
    const { data, errors } = await server.graphql(`{ counts(${args}) { key count } }`, {}, as)
    return errors ? errors[0]!.extensions : data.counts
  }

  it('tell how many rows there are, where they are counted by nothing', async () => {
    assert.deepEqual(await counts('resource: projects'), [{ key: {}, count: 4 }])
    assert.deepEqual(await counts('resource: projects, selector: {name: "none"}'), [{ key: {}, count: 0 }])
  })

  it('come by several fields, related ones too, the most frequent first', async () => {
    assert.deepEqual(await counts('resource: projects, by: ["organisation.name", "name"]'), [
      { key: { 'organisation.name': 'Acme', name: 'Bridge' }, count: 2 },
      { key: { 'organisation.name': 'Acme', name: 'Tunnel' }, count: 1 },
      { key: { 'organisation.name': 'Bolt', name: 'Bridge' }, count: 1 },
    ])
  })

  it('are of the rows that a selector matches, also where SQL cannot say it', async () => {
    const expected = [{ key: { name: 'Bridge' }, count: 3 }]
    assert.deepEqual(await counts('resource: projects, selector: {name: {_regex: "^B"}}, by: ["name"]'), expected)
    const lists = 'selector: {name: {_regex: "(?i)^b.{3}g"}}'
    assert.deepEqual(await counts(`resource: projects, ${lists}, by: ["name"]`), expected)
  })

  it('are of what the token sees', async () => {
    const limited = await server.token({ permissions: ['read'], organisationIds: [ids[1]!] })
    assert.deepEqual(await counts('resource: projects, by: ["organisation.name"]', limited), [
      { key: { 'organisation.name': 'Bolt' }, count: 1 },
    ])
  })

  it('need the permission to read', async () => {
    const writer = await server.token({ permissions: ['webhooks'] })
    assert.equal((await counts('resource: projects', writer)).code, 'FORBIDDEN')
  })

  it('name the field that there is not, and what there is', async () => {
    const { data, errors } = await server.graphql('{ counts(resource: projects, by: ["nam"]) { count } }')
    assert.equal(data, null)
    assert.equal(errors![0]!.extensions.code, 'BAD_USER_INPUT')
    assert.match(errors![0]!.message, /by\[0\]: .*no field "nam"; did you mean name\?/)
    const whole = await server.graphql('{ counts(resource: projects, by: ["organisation"]) { count } }')
    assert.match(whole.errors![0]!.message, /by\[0\]: "organisation" is an object; name one of its fields/)
  })
})
