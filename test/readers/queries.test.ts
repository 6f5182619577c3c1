import assert from 'node:assert/strict'
import { it } from 'node:test'
import type { AccessToken } from '../../server/domain/permissions.ts'
import type { FromReader } from '../../server/readers/messages.ts'
import { migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { startReaderHere } from '../support/reader-here.ts'

const token = { id: 'token', permissions: ['read'], seesAllOrganisations: true } as unknown as AccessToken
const webhooks = (count: number) => `{ ${Array.from({ length: count }, (_, n) => `a${n}: webhooks { id }`).join(' ')} }`

/** A reader in this process, and what it says of a query until it has answered it. */
const startReader = async () => {
  const { url, database, drop } = await migratedDatabase('sqlite')
  const heard: FromReader[] = []
  const queries = startReaderHere(
    { databaseUrl: url, engine: database.dialect.name, logLevel: 'silent', places: 1, timeMs: 15_000 },
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
  const ask = async (id: number, query: string, isGone = false) => {
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ query })
    const request = { url: '/graphql', method: 'POST', headers, body, token, requestId: `${id}` }
    queries.send({ kind: 'ask', id, request, now: 0, patienceMs: 10_000 })
    if (isGone) queries.send({ kind: 'gone', id })
    const ofQuery = () => heard.filter(message => 'id' in message && message.id === id)
    const said = await eventually('an answer', ofQuery, some => some.some(({ kind }) => kind === 'answer'))
    const { codes, costMs } = said.find(message => message.kind === 'answer')!
    return { kinds: said.map(({ kind }) => kind), codes: [...codes], costMs }
  }
  const stop = async () => {
    queries.kill()
    await drop()
  }
  return { ask, stop }
}

it('a reader says that a query is large before it has answered it, and nothing of a small one', async () => {
  const { ask, stop } = await startReader()
  try {
    const [small, large] = [await ask(1, webhooks(3)), await ask(2, webhooks(40))]
    assert.deepEqual([small.kinds, small.codes], [['answer'], []])
    assert.deepEqual([large.kinds, large.codes], [['large', 'answer'], []])
  } finally {
    await stop()
  }
})

it('a query that is too complex has cost its token something, and one that nobody waits for has not', async () => {
  const { ask, stop } = await startReader()
  const patterns = (count: number) => {
    const list = (n: number) => `a${n}: webhooks(query: {selector: {url: {_regex: "a{0,900}b${n}"}}}) { id }`
    return `{ ${Array.from({ length: count }, (_, n) => list(n)).join(' ')} }`
  }
  try {
    // The second waits for leave to match when it is ended.
    const [refused, ended] = [await ask(1, patterns(20)), await ask(2, patterns(1), true)]
    assert.deepEqual([refused.codes, ended.codes], [['QUERY_TOO_COMPLEX'], ['QUERY_TOO_COMPLEX']])
    assert.ok(refused.costMs! > 0)
    assert.equal(ended.costMs, undefined)
  } finally {
    await stop()
  }
})
