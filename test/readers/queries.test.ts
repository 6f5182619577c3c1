import assert from 'node:assert/strict'
import { it } from 'node:test'
import type { AccessToken } from '../../server/domain/permissions.ts'
import type { FromReader } from '../../server/readers/messages.ts'
import { migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { startReaderHere } from '../support/reader-here.ts'

const token = { id: 'token', permissions: ['read'], seesAllOrganisations: true } as unknown as AccessToken
const webhooks = (count: number) => `{ ${Array.from({ length: count }, (_, n) => `a${n}: webhooks { id }`).join(' ')} }`

it('a reader says that a query is large before it has answered it, and nothing of a small one', async () => {
  const { url, database, drop } = await migratedDatabase('sqlite')
  const heard: FromReader[] = []
  const queries = startReaderHere(
    { databaseUrl: url, engine: database.dialect.name, logLevel: 'silent', places: 1 },
    {
      message: message => heard.push(message),
      ready() {},
      isOther() {},
      failed(error) {
        throw error
      },
      ended() {},
    },
  )
  const ask = async (id: number, query: string) => {
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ query })
    const request = { url: '/graphql', method: 'POST', headers, body, token, requestId: `${id}` }
    queries.send({ kind: 'ask', id, request, now: 0, patienceMs: 10_000 })
    const ofQuery = () => heard.filter(message => 'id' in message && message.id === id).map(({ kind }) => kind)
    const kinds = await eventually('an answer', ofQuery, some => some.includes('answer'))
    for (const message of heard) if (message.kind === 'answer') assert.equal(message.codes.size, 0)
    return kinds
  }
  try {
    assert.deepEqual(await ask(1, webhooks(3)), ['answer'])
    assert.deepEqual(await ask(2, webhooks(40)), ['large', 'answer'])
  } finally {
    queries.kill()
    await drop()
  }
})
