import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, afterEach, it } from 'node:test'
import type { Credentials } from '../../shared/hmac.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const MINUTE_MS = 60_000

describeEachEngine('the rate limit', engine => {
  const started: TestServer[] = []
  const stopAll = async () => {
    for (const server of started.splice(0).reverse()) await server.stop()
  }
  afterEach(stopAll)
  after(stopAll)

  /** Server processes that share a database, and clocks at the beginning of a minute. */
  const start = async (limit: number, count: number): Promise<{ servers: TestServer[]; clocks: TestClock[] }> => {
    const minute = Math.ceil(Date.now() / MINUTE_MS) * MINUTE_MS
    const clocks = Array.from({ length: count }, () => testClock(minute))
    const env = {
      TIDINGS_ROLES: 'api',
      TIDINGS_RATE_LIMIT: String(limit),
      TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    }
    for (const clock of clocks) {
      const first = started[0]
      started.push(await startTestServer(engine, { env, clock, ...(first && { url: first.config.databaseUrl }) }))
    }
    return { servers: [...started], clocks }
  }

  const ask = (server: TestServer, as: Credentials) => server.graphql('{ viewer { id } }', {}, as)
  const told = ({ status, headers }: GraphqlAnswer) => [status, headers.get('ratelimit'), headers.get('retry-after')]

  it('lets exactly as many requests through as it says, and tells how many are left', async () => {
    const { servers, clocks } = await start(5, 1)
    const token = await servers[0]!.token()
    clocks[0]!.advance(20_500)
    const answers = []
    for (let n = 0; n < 7; n++) answers.push(await ask(servers[0]!, token))
    assert.deepEqual(answers.map(told), [
      [200, '"default";r=4;t=40', null],
      [200, '"default";r=3;t=40', null],
      [200, '"default";r=2;t=40', null],
      [200, '"default";r=1;t=40', null],
      [200, '"default";r=0;t=40', null],
      [429, '"default";r=0;t=40', '40'],
      [429, '"default";r=0;t=40', '40'],
    ])
    for (const { headers } of answers) assert.equal(headers.get('ratelimit-policy'), '"default";q=5;w=60')
    const { data, errors } = answers[5]!
    assert.equal(data, undefined)
    assert.equal(errors!.length, 1)
    const { requestId, ...extensions } = errors![0]!.extensions
    assert.deepEqual(extensions, { code: 'RATE_LIMITED', limit: 5, retryAfterSeconds: 40 })
    assert.equal(requestId, answers[5]!.headers.get('x-request-id'))

    clocks[0]!.advance(39_500)
    assert.deepEqual(told(await ask(servers[0]!, token)), [200, '"default";r=4;t=60', null])
  })

  it('counts each token by itself', async () => {
    const { servers } = await start(2, 1)
    const tokens = [await servers[0]!.token(), await servers[0]!.token()]
    for (const expected of [200, 200, 429]) {
      for (const token of tokens) assert.equal((await ask(servers[0]!, token)).status, expected)
    }
  })

  it('is one for all server processes together, also when they are asked at once', async () => {
    const { servers } = await start(40, 2)
    const token = await servers[0]!.token()
    const answers = await Promise.all(Array.from({ length: 90 }, (_, n) => ask(servers[n % 2]!, token)))
    const passed = answers.filter(answer => answer.status === 200)
    assert.equal(passed.length, 40)
    assert.equal(answers.filter(answer => answer.status === 429).length, 50)
    for (const server of servers) assert.equal((await ask(server, token)).status, 429)
  })

  it('is never passed by processes whose clocks differ where a minute ends', async () => {
    const { servers, clocks } = await start(10, 2)
    const token = await servers[0]!.token()
    clocks[1]!.set(clocks[0]!.now() - 50)
    let passed = 0
    for (let n = 0; n < 30; n++) if ((await ask(servers[n % 2]!, token)).status === 200) passed += 1
    assert.ok(passed <= 10, `${passed} requests passed`)
  })

  it('asks the database once for many requests where it is high, and gives out no more than it says', async () => {
    const { servers } = await start(1_000, 2)
    const token = await servers[0]!.token()
    for (let n = 0; n < 10; n++) assert.equal((await ask(servers[n % 2]!, token)).status, 200)
    const [row] = await servers[0]!.database.knex('rate_limits').where('access_token_id', token.id)
    assert.equal(row.taken, 20, 'each process takes a hundredth at a time')
    await servers[0]!.database.knex('rate_limits').update({ taken: 1_000 })
    const answers = []
    for (let n = 0; n < 20; n++) answers.push((await ask(servers[n % 2]!, token)).status)
    assert.deepEqual(answers, [...Array(10).fill(200), ...Array(10).fill(429)], 'what it had taken before it uses')
  })

  it('is short of what other processes have taken and not used: a hundredth each at most', async () => {
    const { servers } = await start(1_000, 3)
    const token = await servers[0]!.token()
    for (const server of servers) assert.equal((await ask(server, token)).status, 200)
    const { knex } = servers[0]!.database
    await knex('rate_limits').update({ taken: 990 })
    // 10 are left in the count, and 9 at each of the processes.
    const statusesOf = async (server: TestServer, count: number) => {
      const statuses = []
      for (let n = 0; n < count; n++) statuses.push((await ask(server, token)).status)
      return statuses
    }
    assert.deepEqual(await statusesOf(servers[0]!, 22), [...Array(19).fill(200), 429, 429, 429])
    assert.deepEqual(await statusesOf(servers[1]!, 10), [...Array(9).fill(200), 429])
  })

  it('refuses none of those that come at once while there are enough left', async () => {
    const { servers } = await start(1_000, 1)
    const token = await servers[0]!.token()
    const answers = await Promise.all(Array.from({ length: 156 }, () => ask(servers[0]!, token)))
    // A machine that has much else to do may have no place for some of them.
    const statuses = new Set(answers.map(({ status }) => status))
    assert.deepEqual(statuses.difference(new Set([503])), new Set([200]))
  })

  it('does not count what is not signed by the token', async () => {
    const { servers } = await start(1, 1)
    const token = await servers[0]!.token()
    const forged = { ...token, apiSecret: randomBytes(32).toString('base64') }
    for (let n = 0; n < 3; n++) assert.equal((await ask(servers[0]!, forged)).status, 401)
    assert.equal((await ask(servers[0]!, token)).status, 200)
  })
})
