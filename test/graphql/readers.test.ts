import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import diagnostics from 'node:diagnostics_channel'
import { readdirSync, readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { after, before, it } from 'node:test'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { rows } from '../../server/database/connect.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { subscribe } from '../live/events.ts'
import { describeEachEngine } from '../support/databases.ts'
import { cpuMsOf } from '../support/effort.ts'
import { eventually } from '../support/eventually.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

const startWithReaders: typeof startTestServer = (engine, given) =>
  startTestServer(engine, { ...given, hasReaderProcesses: true })

const ENV = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' }
const USERS = 60_000
/** Milliseconds of processor time of the server's own process; what is looked for takes seconds of it. */
const HELD_MS = 1_000

/** What has run for so long is put back, if too much else does. */
const LONG_MS = 250
/** Of one token. */
const MOST_LONG = availableParallelism() < 4 ? 1 : 2

/** Takes many seconds, in the database. */
const SLOW = {
  query: 'query($s: MangoSelector) { users(query: {selector: $s, sort: [{name: "desc"}], limit: 10}) { id } }',
  variables: { s: { $or: Array.from({ length: 450 }, (_, n) => ({ name: { $regex: `j${n}!` } })) } },
}
/** Takes no time, and is not known to. */
const QUICK = '{ organisations(query: {sort: ["name"], limit: 3}) { id projects { id } } }'

/** The processes that this one has started to answer queries. */
const readers = (): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)
    .filter(pid => {
      try {
        const parent = Number(/\) \w (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1])
        return parent === process.pid && readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('bin/reader.js')
      } catch {
        return false
      }
    })

/** What is done while no query can be answered. */
const whileFrozen = async <T>(work: () => Promise<T>): Promise<T> => {
  const all = readers()
  for (const pid of all) process.kill(pid, 'SIGSTOP')
  try {
    return await work()
  } finally {
    for (const pid of all) process.kill(pid, 'SIGCONT')
  }
}

describeEachEngine('a query that is not small runs in a process of its own', engine => {
  let server: TestServer
  before(async () => {
    server = await startWithReaders(engine, { env: ENV })
    const users = Array.from({ length: USERS }, (_, n) => ({
      id: randomUUID(),
      name: `${'abcdefghij'.repeat(20)}${n}`,
      created_at: 1,
      updated_at: 1,
    }))
    await server.database.knex.batchInsert('users', users, 200)
    await server.graphql(QUICK)
  })
  after(() => server.stop())

  const ask = async (
    as: Credentials,
    { query, variables }: { query: string; variables?: object },
    signal?: AbortSignal,
  ) => {
    const url = new URL('/graphql', server.url)
    const body = JSON.stringify({ query, variables })
    const signed = signRequest({ method: 'POST', url, body, credentials: as, at: new Date(), nonce: randomUUID() })
    const headers = { ...signed, 'content-type': 'application/json' }
    const response = await fetch(url, { method: 'POST', headers, body, ...(signal && { signal }) })
    return { status: response.status, retryAfter: response.headers.get('retry-after'), body: await response.text() }
  }
  /** Asks for what takes long, so many times at once; returns what lets its clients go. */
  const slowly = (as: Credentials, times: number) => {
    const gone = new AbortController()
    const asked = Array.from({ length: times }, () => ask(as, SLOW, gone.signal).catch(() => undefined))
    return {
      asked,
      async leave() {
        gone.abort()
        await Promise.all(asked)
      },
    }
  }
  /** The statements that run for what takes long; on an embedded engine they run in a reader. */
  const statements = async (): Promise<number> => {
    const found = await rows<{ id: number }>(
      server.database.knex,
      `SELECT id FROM information_schema.processlist
       WHERE command <> 'Sleep' AND info LIKE '%j449!%' AND id <> CONNECTION_ID()`,
    )
    return found.length
  }

  /** Whether so many have run for some time as one token may have. */
  const areCrowded = async (): Promise<boolean> => {
    for (let n = 0; n < 4; n++, await sleep(LONG_MS / 2)) if ((await statements()) !== MOST_LONG) return false
    return true
  }

  it('and nothing else in the server waits for it', { timeout: 60_000 }, async () => {
    const slow = slowly(await server.token(), 2)
    const heldMs = await cpuMsOf(async () => {
      for (let n = 0; n < 20; n++) assert.equal((await server.graphql('{ viewer { id } }')).errors, undefined)
    })
    await slow.leave()
    assert.ok(heldMs < HELD_MS, `the server was held for ${Math.round(heldMs)} ms`)
  })

  it('and ends, with its statement, when its client hangs up', { timeout: 60_000 }, async () => {
    const as = await server.token()
    const { isEmbedded } = server.database.dialect
    if (!isEmbedded) await eventually('what was left to end', statements, count => count === 0)
    const slow = slowly(as, 1)
    if (!isEmbedded) await eventually('the statement to run', statements, count => count > 0)
    await slow.leave()
    if (!isEmbedded) await eventually('the statement to end', statements, count => count === 0, { timeoutMs: 5_000 })
    // What it had is free for the next.
    assert.equal((await server.graphql(QUICK, {}, as)).errors, undefined)
  })

  it('of which one token has some places, and others have the rest', { timeout: 60_000 }, async () => {
    const slow = slowly(await server.token(), 20)
    // One that waits for a reader that takes seconds to start is UNAVAILABLE; without places of their own, all are.
    let answered = 0
    for (let asked = 0; asked < 6 && answered < 3; asked++)
      if ((await server.graphql(QUICK)).errors === undefined) answered++
    assert.equal(answered, 3)
    await slow.leave()
  })

  it('of which one token has one long at once for each pair of processes', { timeout: 60_000 }, async () => {
    // On an embedded engine, a process runs one query at a time.
    if (server.database.dialect.isEmbedded) return
    await eventually('what was left to end', statements, count => count === 0)
    const slow = slowly(await server.token(), 4)
    await eventually('the others to be put back', areCrowded, Boolean)
    for (let n = 0; n < 3; n++) {
      assert.equal((await server.graphql(QUICK)).errors, undefined)
      assert.ok((await statements()) <= MOST_LONG)
    }
    await slow.leave()
  })

  it('and a mutation is answered beside them', { timeout: 60_000 }, async () => {
    if (server.database.dialect.isEmbedded) return
    await eventually('what was left to end', statements, count => count === 0)
    const as = await server.token()
    const slow = slowly(as, 4)
    await eventually('the others to be put back', areCrowded, Boolean)
    const { data, errors } = await server.graphql('mutation { upsertOrganisation(name: "Beta") { name } }', {}, as)
    assert.equal(errors, undefined)
    assert.equal(data.upsertOrganisation.name, 'Beta')
    assert.equal(await statements(), MOST_LONG)
    await slow.leave()
  })

  it('of which twenty tokens ask for patterns that take long in one row, and others are answered', {
    timeout: 60_000,
  }, async () => {
    const { organisationId } = await addProject(server.database)
    const limited = () => server.token({ permissions: ['read'], organisationIds: [organisationId] })
    const attackers = await Promise.all(Array.from({ length: 20 }, limited))
    for (let n = 0; n < 8; n++) {
      const url = `https://receiver.example/${'a'.repeat(1_960)}${n}`
      await addWebhook(server.database.knex, {
        accessTokenId: attackers[0]!.id,
        url,
        organisationIds: [organisationId],
      })
    }
    const query = 'query($s: MangoSelector) { webhooks(query: {selector: $s}) { id } }'
    const patterns = Array.from({ length: 10 }, (_, n) => ({ $regex: `a.{91${n}}[c-d]` }))
    const slow = { query, variables: { s: { url: { $or: patterns } } } }
    const gone = new AbortController()
    const asked = [...attackers, ...attackers].map(as => ask(as, slow, gone.signal).catch(() => undefined))
    for (let n = 0; n < 5; n++) assert.equal((await server.graphql(QUICK)).errors, undefined)
    gone.abort()
    await Promise.all(asked)
  })

  it('and is done all the same, when it was put back for another', { timeout: 60_000 }, async () => {
    const as = await server.token()
    const slow = slowly(as, 1)
    const query = 'query($s: MangoSelector) { users(query: {selector: $s, sort: [{name: "desc"}], limit: 1}) { id } }'
    const some = { $or: Array.from({ length: 10 }, (_, n) => ({ name: { $regex: `j${n}!` } })) }
    const later = ask(as, { query, variables: { s: some } })
    await sleep(3 * LONG_MS)
    await slow.leave()
    const { status, body } = await later
    assert.deepEqual([status, body], [200, '{"data":{"users":[]}}'])
  })

  it('and is refused, when it was to be done again, if there was no place for it in time', {
    timeout: 60_000,
  }, async () => {
    const slow = slowly(await server.token(), 20)
    const isRefused = async (asked: (typeof slow.asked)[number]) => {
      const answer = await asked
      assert.equal(answer?.status, 503)
      return answer!
    }
    const refused = await Promise.any(slow.asked.map(isRefused))
    await slow.leave()
    assert.equal(refused.retryAfter, '5')
    assert.match(refused.body, /"code":"UNAVAILABLE"/)
    assert.match(refused.body, /under way/)
  })

  it('and one that has ended is followed by another', { timeout: 60_000 }, async () => {
    assert.notEqual(readers().length, 0)
    for (const pid of readers()) process.kill(pid, 'SIGKILL')
    assert.equal((await server.graphql(QUICK)).errors, undefined)
  })

  it('whose answer comes whole, however long it is and whatever characters it has', async () => {
    // However a long text is cut, some of these pairs of code units are on two sides of a cut.
    const names = Array.from({ length: 9_000 }, (_, n) => `${'x'.repeat(n % 2)}${'😀'.repeat(60)}${10_000 + n}`)
    const users = names.map(name => ({ id: randomUUID(), name, created_at: 2, updated_at: 2 }))
    await server.database.knex.batchInsert('users', users, 200)
    const query = '{ users(query: {selector: {name: {_regex: "😀"}}, limit: 9000}) { name } }'
    const answers = await Promise.all([1, 2, 3].map(() => server.graphql(query)))
    for (const { data, errors } of answers) {
      assert.equal(errors, undefined)
      assert.deepEqual(data.users.map(({ name }: { name: string }) => name).sort(), names.toSorted())
    }
  })

  it('and so does all that a subscription is told', async () => {
    const admin = await server.token()
    const { projectId, userId } = await addProject(server.database)
    await addWebhook(server.database.knex, { accessTokenId: admin.id, url: 'http://127.0.0.1:9/' })
    const live = await subscribe(server.url, admin, 'subscription { deliveries { event { deliveries { id } } } }')
    await whileFrozen(async () => {
      const submit = `submitProjectReport(projectId: "${projectId}", quarter: "2026-3", submitterId: "${userId}")`
      assert.equal((await server.graphql(`mutation { ${submit} { id } }`, {}, admin)).errors, undefined)
      await sleep(1_500)
      assert.deepEqual(live.events, [])
    })
    await live.until('a delivery', events => events.length > 0)
    live.leave()
  })

  it('and so does what is searched for to be sent again', async () => {
    const admin = await server.token()
    const webhookId = await addWebhook(server.database.knex, { accessTokenId: admin.id, url: 'http://127.0.0.1:9/' })
    const query = '{ selector: { status: "dropped" } }'
    const document = `mutation { redeliverMany(webhookId: "${webhookId}", query: ${query}) { queued } }`
    const asked = await whileFrozen(async () => {
      let isAnswered = false
      const asked = server.graphql(document, {}, admin).finally(() => (isAnswered = true))
      await sleep(1_000)
      assert.ok(!isAnswered)
      return [asked]
    })
    assert.deepEqual((await asked[0]!).data, { redeliverMany: { queued: 0 } })
  })
})

it('a server has no reader before its first query, none after a while without one, and one for the next', async () => {
  const server = await startWithReaders('sqlite', { env: ENV, readerTerms: { pairMs: 600_000, restMs: 3_000 } })
  try {
    for (let n = 0; n < 2; n++) {
      assert.deepEqual(readers(), [])
      assert.equal((await server.graphql(QUICK)).errors, undefined)
      assert.notEqual(readers().length, 0)
      await eventually('its reader to end', readers, ({ length }) => length === 0)
    }
  } finally {
    await server.stop()
  }
})

it('a server has two readers soon after the first query, so that one is left to others', async () => {
  const server = await startWithReaders('sqlite', { env: ENV, readerTerms: { pairMs: 1 } })
  try {
    assert.equal((await server.graphql(QUICK)).errors, undefined)
    await eventually('the second reader', readers, ({ length }) => length === 2)
  } finally {
    await server.stop()
  }
})

it("a tenant's query comes before those that wait of twenty tokens of another", async () => {
  const server = await startWithReaders('sqlite', { env: ENV })
  try {
    const [crowd, other] = await Promise.all([addProject(server.database), addProject(server.database)])
    const tokens = await Promise.all(
      Array.from({ length: 20 }, () => server.token({ organisationIds: [crowd.organisationId] })),
    )
    const last = await server.token({ organisationIds: [other.organisationId] })
    assert.equal((await server.graphql(QUICK)).errors, undefined)
    const answered: string[] = []
    const ask = async (as: Credentials & { id: string }) => {
      const { errors } = await server.graphql(QUICK, {}, as)
      assert.equal(errors, undefined)
      answered.push(as.id)
    }
    let received = 0
    const receive = () => (received += 1)
    diagnostics.subscribe('http.server.request.start', receive)
    const untilWaiting = async (requests: number) => {
      await eventually(
        'the requests to arrive',
        () => received,
        n => n === requests,
      )
      // What the server does then before it asks a reader takes a few turns of this process.
      for (let turn = 0; turn < 100; turn++) await setImmediate()
    }
    const asked = await whileFrozen(async () => {
      const asked = [...tokens, ...tokens].map(ask)
      await untilWaiting(asked.length)
      asked.push(ask(last))
      await untilWaiting(asked.length)
      assert.equal(answered.length, 0)
      return asked
    }).finally(() => diagnostics.unsubscribe('http.server.request.start', receive))
    await Promise.all(asked)
    assert.ok(answered.indexOf(last.id) < 10, `it was answered as number ${answered.indexOf(last.id) + 1}`)
  } finally {
    await server.stop()
  }
})

it('a reader whose server dies ends without a word', () => {
  // The server is killed in the turn after it has started the reader, which can tell it nothing any more.
  const reader = fileURLToPath(new URL('../../bin/reader.js', import.meta.url))
  const start = { kind: 'start', databaseUrl: 'sqlite::memory:', engine: 'sqlite', logLevel: 'silent', places: 1 }
  const server = `
    const stdio = ['ignore', 'ignore', 'inherit', 'ipc', 'pipe']
    const child = require('node:child_process').fork(${JSON.stringify(reader)}, { serialization: 'advanced', stdio })
    child.send(${JSON.stringify(start)}, () => process.kill(process.pid, 'SIGKILL'))`
  // Ends when the reader has let go of its standard error, too.
  const { signal, stderr } = spawnSync(process.execPath, ['-e', server], { encoding: 'utf8' })
  assert.deepEqual({ signal, stderr }, { signal: 'SIGKILL', stderr: '' })
})
