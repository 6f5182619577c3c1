import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { serverAudits } from 'graphql-http'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

// What goes over HTTP does not depend on the database.
describe('GraphQL over HTTP, by the audits of graphql-http', () => {
  let server: TestServer
  let credentials: Credentials
  before(async () => {
    server = await startTestServer('sqlite')
    credentials = await server.token()
  })
  after(() => server.stop())

  const signedFetch = (address: string, init: RequestInit = {}): Promise<Response> => {
    const { method = 'GET', body = '' } = init
    const signed = signRequest({
      method,
      url: new URL(address),
      body: body as string,
      credentials,
      at: new Date(),
      nonce: randomUUID(),
    })
    return fetch(address, { ...init, headers: { ...(init.headers as Record<string, string>), ...signed } })
  }

  const audits = serverAudits({ url: () => new URL('/graphql', server.url).href, fetchFn: signedFetch })

  it('are the 61 that the contract names', () => {
    assert.equal(audits.length, 61)
  })

  for (const audit of audits) {
    it(`${audit.id} ${audit.name}`, async () => {
      const result = await audit.fn()
      assert.equal(result.status, 'ok', 'reason' in result ? result.reason : '')
    })
  }
})
