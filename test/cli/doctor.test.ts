import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { temporaryFolder, tidings } from './tidings.ts'

interface Check {
  name: string
  status: string
  found: string
  next: string | null
}

const home = temporaryFolder()
const viewer = {
  id: 'v1',
  name: 'ci',
  apiKey: 'k',
  permissions: ['read', 'webhooks'],
  seesAllOrganisations: true,
  organisations: [],
  expiresAt: null,
}
/** Whole: for the end of one, webhooks are searched. */
const WEBHOOK_ID = '019f0000-0000-7000-8000-000000000001'
const webhook = {
  id: WEBHOOK_ID,
  url: '',
  events: [],
  organisationIds: [],
  projectIds: [],
  status: 'active',
  statusReason: null,
  createdAt: '2026-11-21T00:40:01.000+00:00',
  deliveries: [] as object[],
}

/** A server that says these things of itself. */
const scene = {
  ready: { status: 'ready' } as object,
  date: undefined as string | undefined,
  webhook: webhook as object,
  viewer: viewer as object,
  errors: undefined as object[] | undefined,
}
const server = createServer((request, response) => {
  if (scene.date) response.setHeader('date', scene.date)
  response.setHeader('content-type', 'application/json')
  let body = ''
  request.on('data', chunk => {
    body += chunk
  })
  request.on('end', () => {
    if (request.url === '/readyz') return response.end(JSON.stringify(scene.ready))
    response.end(
      JSON.stringify(
        scene.errors
          ? { errors: scene.errors }
          : { data: body.includes('webhooks(') ? { webhooks: [scene.webhook] } : { viewer: scene.viewer } },
      ),
    )
  })
})
await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
after(() => server.close())
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`

const doctor = async (given: Partial<typeof scene> = {}, args: string[] = [], address = url) => {
  Object.assign(
    scene,
    { ready: { status: 'ready' }, date: undefined, webhook: { ...webhook, url }, viewer, errors: undefined },
    given,
  )
  const env = { TIDINGS_URL: address, TIDINGS_API_KEY: 'k', TIDINGS_API_SECRET: Buffer.alloc(32).toString('base64') }
  const { code, stdout } = await tidings(['doctor', ...args], { home, env })
  const { ok, checks } = JSON.parse(stdout) as { ok: boolean; checks: Check[] }
  const check = (name: string) => checks.find(each => each.name === name)!
  return { code, ok, checks, check }
}

test('doctor finds nothing where all is well, and ends with 0', async () => {
  const { code, ok, checks } = await doctor()
  assert.equal(code, 0)
  assert.equal(ok, true)
  assert.deepEqual([...new Set(checks.map(({ status }) => status))], ['ok'])
})

test('a server that is not there is a problem with a next step, and exit code 1', async () => {
  const { code, check } = await doctor({}, [], 'http://127.0.0.1:1')
  assert.equal(code, 1)
  assert.equal(check('connection').status, 'problem')
  assert.match(check('connection').next!, /npm start/)
})

test('a server that is not ready says why', async () => {
  const { check } = await doctor({ ready: { status: 'not ready', reason: 'the database does not answer' } })
  assert.match(check('server').found, /the database does not answer/)
})

test('what is no Tidings server is told apart', async () => {
  const { check } = await doctor({ ready: { hello: 1 } })
  assert.match(check('server').found, /not as a Tidings server does/)
})

test('a clock that is an hour off is a problem, one that is a minute off a note', async () => {
  const hour = await doctor({ date: new Date(Date.now() - 3_600_000).toUTCString() })
  assert.equal(hour.check('clock').status, 'problem')
  assert.match(hour.check('clock').found, /(1 h|59 min.*) ahead/)
  assert.equal((await doctor({ date: new Date(Date.now() + 60_000).toUTCString() })).check('clock').status, 'note')
})

test('a refused access token is a problem with the advice that goes with it', async () => {
  const errors = [{ message: 'The token has expired.', extensions: { code: 'UNAUTHENTICATED', reason: 'expired' } }]
  const { code, check } = await doctor({ errors })
  assert.equal(code, 1)
  assert.match(check('access token').next!, /tidings login/)
})

test('a token that may only read is a note', async () => {
  const { code, check } = await doctor({ viewer: { ...viewer, permissions: ['read'] } })
  assert.equal(code, 0)
  assert.match(check('permissions').next!, /webhooks/)
})

test('doctor --webhook says what became of the last deliveries, and if the endpoint is reached from here', async () => {
  const attempts = [
    {
      number: 1,
      startedAt: '2026-11-21T00:40:01.000+00:00',
      durationMs: 5,
      statusCode: 404,
      failure: null,
      failureDetail: null,
      response: '',
      retryAfter: null,
    },
  ]
  const deliveries = [
    {
      id: 'd1',
      eventType: 'ping',
      status: 'rejected',
      createdAt: '2026-11-21T00:40:01.000+00:00',
      nextAttemptAt: null,
      attempts,
    },
  ]
  const { code, check } = await doctor({ webhook: { ...webhook, url: 'http://127.0.0.1:1/hooks', deliveries } }, [
    '--webhook',
    WEBHOOK_ID,
  ])
  assert.equal(code, 1)
  assert.equal(check('webhook').status, 'ok')
  assert.match(check('deliveries').found, /rejected: answered 404/)
  assert.match(check('deliveries').next!, /deliveries show d1/)
  assert.equal(check('endpoint').status, 'problem')
})

test('doctor --webhook says how a webhook that is not active gets well', async () => {
  const { check } = await doctor(
    { webhook: { ...webhook, url, status: 'inactive', statusReason: 'It answered 429.' } },
    ['--webhook', WEBHOOK_ID],
  )
  assert.match(check('webhook').found, /inactive: It answered 429/)
  assert.match(check('webhook').next!, new RegExp(`webhooks enable ${WEBHOOK_ID}`))
})
