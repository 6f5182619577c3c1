import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { startTestServer, type TestServer } from '../support/server.ts'

// What is wrong with a document is found before any database is asked.
describe('a wrong argument', () => {
  let server: TestServer
  before(async () => {
    server = await startTestServer('sqlite', { env: { TIDINGS_ROLES: 'api' } })
  })
  after(() => server.stop())

  const id = randomUUID()
  const wrong: [what: string, document: string, argument: string | undefined, variables?: object][] = [
    ['a literal', 'mutation { pingWebhook(id: "x") { id } }', 'id'],
    ['one of a list', `mutation { createWebhook(url: "http://x/", projectIds: ["${id}", "y"]) { id } }`, 'projectIds'],
    ['an enum', 'mutation { createWebhook(url: "http://x/", events: [pong]) { id } }', 'events'],
    ['a nested one', '{ webhooks { deliveries(query: { limit: "many" }) { id } } }', 'query'],
    ['a variable of another name', 'mutation($given: UUID!) { pingWebhook(id: $given) { id } }', 'id', { given: 'x' }],
    ['a variable that is missing', 'mutation($given: UUID!) { pingWebhook(id: $given) { id } }', 'id'],
    ['a variable inside a value', '($n: Int) { webhooks(query: { limit: $n }) { id } }', 'query', { n: 'x' }],
    ['a selector', '{ webhooks(query: { selector: { nme: 1 } }) { id } }', 'query'],
    ['an unknown one', `mutation { pingWebhook(id: "${id}", hard: true) { id } }`, 'hard'],
    ['no argument at all but a field', '{ webhooks { nme } }', undefined],
    ['no argument at all but the syntax', '{ webhooks { id }', undefined],
  ]
  for (const [what, document, argument, variables] of wrong) {
    it(`is named: ${what}`, async () => {
      const query = document.startsWith('(') ? `query${document}` : document
      const { errors } = await server.graphql(query, variables)
      assert.equal(errors?.length, 1, JSON.stringify(errors))
      const [{ extensions }] = errors as [(typeof errors)[0]]
      assert.deepEqual(
        { code: extensions.code, argument: extensions.argument },
        { code: 'BAD_USER_INPUT', argument },
        errors![0]!.message,
      )
    })
  }
})
