import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CliError } from '../../cli/errors.ts'
import { ReachabilityWatch } from '../../cli/listen/reachability.ts'

const sent = (given: object = {}) => ({
  id: 'd1',
  eventType: 'ping',
  status: 'pending',
  attemptCount: 1,
  nextAttemptAt: new Date(Date.now() + 5_500).toISOString(),
  attempts: [{ number: 1, statusCode: null, failure: 'connection_refused', failureDetail: 'connect ECONNREFUSED' }],
  ...given,
})

/** A watch of a webhook in this state; each look answers what it said. */
const watching = (
  state: { status?: string; statusReason?: string; deliveries?: object[] },
  url = 'http://127.0.0.1:1/hooks',
) => {
  const said: string[] = []
  const arrivals = new Map<string, number>()
  const scene = { state, fault: undefined as Error | undefined }
  const watch = new ReachabilityWatch({
    ask: async () => {
      if (scene.fault) throw scene.fault
      return { webhooks: [{ status: 'active', statusReason: null, deliveries: [], ...scene.state }] } as never
    },
    webhookId: 'w1',
    after: 'a',
    url,
    receiverUrl: 'http://127.0.0.1:1/hooks',
    arrivals: id => arrivals.get(id) ?? 0,
    say: text => said.push(text),
  })
  const look = async () => {
    said.length = 0
    await watch.look()
    return said.join('\n')
  }
  return { look, arrivals, scene }
}

test('an attempt that never came is told with what the server found, once', async () => {
  const { look } = watching({ deliveries: [sent()] })
  assert.match(
    await look(),
    /Not received: ping d1 .* connection refused \(connect ECONNREFUSED\)\. Next attempt in 5 s/,
  )
  assert.equal(await look(), '')
})

test('each further attempt that does not come is told again', async () => {
  const { look, scene } = watching({ deliveries: [sent()] })
  await look()
  scene.state = { deliveries: [sent({ attemptCount: 2, status: 'dropped', nextAttemptAt: null })] }
  assert.match(await look(), /It is dropped/)
})

test('an attempt that came is not told, whatever was answered and whenever it is recorded', async () => {
  const { look, arrivals, scene } = watching({ deliveries: [sent({ attemptCount: 0, attempts: [] })] })
  arrivals.set('d1', 1)
  assert.equal(await look(), '')
  scene.state = { deliveries: [sent()] }
  assert.equal(await look(), '')
  scene.state = { deliveries: [sent({ attemptCount: 2 })] }
  assert.match(await look(), /Not received/)
})

test('deliveries from before this run are not told', async () => {
  const { look } = watching({ deliveries: [sent({ id: 'A' })] })
  assert.equal(await look(), '')
})

test('an address that the server does not send to is told with what opens it', async () => {
  const attempts = [{ number: 1, statusCode: null, failure: 'address_not_allowed', failureDetail: null }]
  const { look } = watching({ deliveries: [sent({ attempts })] })
  assert.match(await look(), /--public-url.*TIDINGS_ALLOW_NETWORKS/)
})

test('behind a tunnel the question is where that leads', async () => {
  const { look } = watching({ deliveries: [sent()] }, 'https://tunnel.example/hooks')
  assert.match(await look(), /Does https:\/\/tunnel\.example\/hooks lead to http:\/\/127\.0\.0\.1:1\/hooks\?/)
})

test('a webhook that leaves active is told, with the way back', async () => {
  const { look } = watching({ status: 'inactive', statusReason: 'It answered 429.' })
  assert.match(await look(), /now inactive: It answered 429\..*tidings webhooks enable w1/)
  assert.equal(await look(), '')
})

test('deliveries that are due and not attempted are told', async () => {
  const nextAttemptAt = new Date(Date.now() - 60_000).toISOString()
  const { look } = watching({ deliveries: [sent({ attemptCount: 0, attempts: [], nextAttemptAt })] })
  assert.match(await look(), /1 delivery is due and not attempted.*server doctor/)
})

test('a server that goes away is told once, and once when it is back', async () => {
  const { look, scene } = watching({})
  scene.fault = new CliError(5, 'UNREACHABLE', 'It was not reached.')
  assert.match(await look(), /not reached.*still waiting/)
  assert.equal(await look(), '')
  scene.fault = undefined
  assert.equal(await look(), 'The server is back.')
})
