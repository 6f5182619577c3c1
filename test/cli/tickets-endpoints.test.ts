import { randomUUID } from 'node:crypto'
import dns from 'node:dns'
import { once } from 'node:events'
import { createServer as createHttpServer, type RequestListener } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { syncBuiltinESMExports } from 'node:module'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { keyOfSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { cert, key } from '../delivery/localhost-certificate.ts'
import { enginesHere } from '../support/databases.ts'
import type { ReceivedRequest } from '../support/receiver.ts'
import { type Place, play, type Ticket } from './ticket-desk.ts'

// What became of a request on its way to the endpoint, and what the endpoint answered.

/** Names of endpoints that lead to this machine, or elsewhere, or nowhere. */
const addresses = new Map<string, string | undefined>()
const systemLookup = dns.lookup
const lookup = (name: string, options: object, done: (error: Error | null, found: object[]) => void): void => {
  if (!addresses.has(name)) return void (systemLookup as (...given: unknown[]) => void)(name, options, done)
  const address = addresses.get(name)
  if (address === undefined) done(Object.assign(new Error(`not found: ${name}`), { code: 'ENOTFOUND' }), [])
  else done(null, [{ address, family: 4 }])
}
dns.lookup = lookup as unknown as typeof dns.lookup
syncBuiltinESMExports()
after(() => {
  dns.lookup = systemLookup
  syncBuiltinESMExports()
})

const trusted = getCACertificates('default')
const trust = (isTrusted: boolean): void => setDefaultCACertificates(isTrusted ? [...trusted, cert] : trusted)
after(() => trust(false))

/** An endpoint of its own that can be stopped, and started again at the same port. */
const ownEndpoint = async (make: (answer: RequestListener) => ReturnType<typeof createHttpServer>) => {
  const start = async (port: number) => {
    const server = make((request, response) => {
      request.resume()
      response.end('ok')
    })
    server.listen(port, '127.0.0.1')
    await once(server, 'listening')
    return server
  }
  let server = await start(0)
  const { port } = server.address() as AddressInfo
  const stop = async (): Promise<void> => {
    server.closeAllConnections()
    await new Promise(resolve => server.close(resolve))
  }
  after(() => server.listening && stop())
  return {
    port,
    stop,
    async again() {
      server = await start(port)
    },
  }
}
type Endpoint = Awaited<ReturnType<typeof ownEndpoint>>

const endpoints = new WeakMap<Place, Endpoint>()
const names = new WeakMap<Place, string>()
const secrets = new WeakMap<Place, string>()

/** An event that was dropped, because a name leads somewhere else since. */
const renamed = (address: string | undefined) => async (at: Place) => {
  const name = `receiver-${randomUUID().slice(0, 8)}`
  names.set(at, name)
  // A kept connection needs no name.
  at.desk.answers.set(at.path, () => ({ status: 200, headers: { connection: 'close' } }))
  addresses.set(name, '127.0.0.1')
  const webhookId = await at.webhook({ url: at.url.replace('127.0.0.1', name) })
  addresses.set(name, address)
  const eventId = await at.happens()
  await at.settles(webhookId, eventId)
  return { webhookId, eventId }
}
const namedAgain = (at: Place): void => void addresses.set(names.get(at)!, '127.0.0.1')

/** A receiver that checks Standard Webhooks by the secret that it was given. */
const checksSecret =
  (at: Place) =>
  ({ headers, rawBody }: ReceivedRequest) => {
    const content = { id: String(headers['webhook-id']), timestampSeconds: String(headers['webhook-timestamp']) }
    const wanted = standardSignature(keyOfSecret(secrets.get(at)!)!, { ...content, body: rawBody })
    return { status: String(headers['webhook-signature']).split(' ').includes(wanted) ? 204 : 401 }
  }

/** A receiver of the kit that refuses for one of its checks. */
const refusesFor = (error: string) => ({ status: 401, body: JSON.stringify({ error }) })

/** 32 KiB. */
const LARGE = Array.from({ length: 32 }, (_, n) => [`x-part-${n}`, 'a'.repeat(1_000)])

const well = ({ answer }: Place): void => answer({ status: 204 })

const TICKETS: Ticket[] = [
  {
    cause: 'the receiver is gone for good: 410',
    make: ({ ended }) => ended({ status: 410 }),
    codes: ['refused'],
    says: /answered 410/,
    mended: well,
  },
  {
    cause: 'a login page takes it, and answers 200',
    make: ({ ended }) => ended({ status: 200, body: '\n<!DOCTYPE html><title>Sign in</title>' }),
    codes: ['acknowledged', 'web_page'],
    says: /A web page answered: something before the receiver, such as a login/,
    mended: well,
  },
  {
    cause: 'a gateway refuses the static headers',
    make: ({ ended }) =>
      ended(({ headers }) => ({ status: headers['x-gateway-key'] === 'new' ? 204 : 403 }), {
        headers: { 'X-Gateway-Key': 'old' },
      }),
    codes: ['refused', 'checks_headers'],
    says: /static headers \(x-gateway-key\).*--headers-file/i,
    async mended({ webhook, path, desk }) {
      const { webhooks } = await desk.asked('{ webhooks { id url } }')
      const { id } = webhooks.find(({ url }: { url: string }) => url.endsWith(path))
      await webhook({ id, headers: { 'X-Gateway-Key': 'new' } })
    },
  },
  {
    cause: 'the secret was rotated, and the receiver has the old one',
    async make(at) {
      const { id, secret } = await at.upsert({ signing: 'standard' })
      secrets.set(at, secret!)
      const { rotateWebhookSecret } = await at.desk.asked(
        'mutation ($id: UUID!) { rotateWebhookSecret(id: $id, graceSeconds: 0) { secret } }',
        { id },
      )
      at.answer(checksSecret(at))
      const eventId = await at.happens()
      await at.settles(id, eventId)
      secrets.set(at, rotateWebhookSecret.secret)
      return { webhookId: id, eventId }
    },
    codes: ['token_refused', 'checks_secret'],
    says: /must have its present secret/,
  },
  {
    cause: 'the clock of the receiver is ahead',
    make: ({ ended }) => ended(refusesFor('expiry')),
    codes: ['token_refused', 'failed_check'],
    says: /says “expiry”: the token had expired: its clock is ahead/,
    mended: well,
  },
  {
    cause: 'the receiver expects another URL',
    make: ({ ended }) => ended(refusesFor('audience')),
    codes: ['token_refused', 'failed_check'],
    says: /for another URL than http\S+, which must be written there/,
    mended: well,
  },
  {
    cause: 'a proxy removes the token, and a body parser has changed what is left',
    make: ({ ended }) => ended(refusesFor('token_missing')),
    codes: ['token_refused', 'failed_check'],
    says: /a proxy before it may have removed the header Authorization/,
    mended: well,
  },
  {
    cause: 'the receiver takes a first delivery for a replay',
    make: ({ ended }) => ended(refusesFor('replay')),
    codes: ['token_refused', 'failed_check'],
    says: /one that it has had before/,
    mended: well,
  },
  {
    cause: 'three at once: the receiver has the old secret, checks a header, and has the keys of another server',
    async make({ ended, desk }) {
      const made = await ended(refusesFor('key'), { signing: 'standard', headers: { 'X-Team': 'a' } })
      await desk.asked('mutation ($id: UUID!) { rotateWebhookSecret(id: $id) { secret } }', { id: made.webhookId })
      return made
    },
    codes: ['token_refused', 'failed_check', 'checks_secret', 'checks_headers'],
    says: /it has the keys of another server/,
    mended: well,
  },
  {
    cause: 'the body of its answer never ends, and what came before it counts',
    make: ({ ended }) => ended('flood'),
    codes: ['acknowledged'],
    mended: well,
  },
  {
    cause: 'the headers of its answer are too large',
    make: ({ ended }) => ended({ status: 200, headers: Object.fromEntries(LARGE) }),
    codes: ['retries_exhausted'],
    says: /malformed response/,
    mended: well,
  },
  {
    cause: 'the endpoint has moved, and redirects',
    async make({ ended, url }) {
      return ended({ status: 301, headers: { location: `${new URL(url).pathname}/moved` } })
    },
    codes: ['retries_exhausted', 'redirected'],
    says: /redirects to http\S+\/moved\. Redirects are not followed/,
  },
  {
    cause: 'what answers there does not speak HTTP',
    make: ({ ended }) => ended('malformed'),
    codes: ['retries_exhausted'],
    says: /malformed response/,
    mended: well,
  },
  {
    cause: 'it answered 500 until the last retry',
    make: ({ ended }) => ended({ status: 500 }),
    codes: ['retries_exhausted'],
    says: /answered 500, 4 of 4 attempts/,
    mended: well,
  },
  {
    cause: 'nobody listens any more',
    async make(at) {
      const endpoint = await ownEndpoint(createHttpServer)
      endpoints.set(at, endpoint)
      const webhookId = await at.webhook({ url: `http://127.0.0.1:${endpoint.port}/` })
      await endpoint.stop()
      const eventId = await at.happens()
      await at.settles(webhookId, eventId)
      return { webhookId, eventId }
    },
    codes: ['retries_exhausted'],
    says: /connection refused: Nobody listens/,
    mended: at => endpoints.get(at)!.again(),
  },
  {
    cause: 'its certificate is not trusted any more',
    async make(at) {
      const endpoint = await ownEndpoint(answer => createHttpsServer({ key, cert }, answer) as never)
      endpoints.set(at, endpoint)
      trust(true)
      const webhookId = await at.webhook({ url: `https://localhost:${endpoint.port}/` })
      trust(false)
      await endpoint.stop()
      await endpoint.again()
      const eventId = await at.happens()
      await at.settles(webhookId, eventId)
      return { webhookId, eventId }
    },
    codes: ['retries_exhausted'],
    says: /tls error: The certificate or the handshake of TLS failed/,
    mended: () => trust(true),
  },
  {
    cause: 'its name is not known any more',
    make: renamed(undefined),
    codes: ['retries_exhausted'],
    says: /dns error: No address that deliveries may be sent to/,
    mended: namedAgain,
  },
  {
    cause: 'its name leads to an address within a network that is not open',
    make: renamed('10.20.30.40'),
    codes: ['retries_exhausted'],
    says: /No address that deliveries may be sent to/,
    mended: namedAgain,
  },
  {
    cause: 'two at once: it was refused, and the webhook is disabled since',
    async make({ ended, webhook }) {
      const made = await ended({ status: 422 })
      await webhook({ id: made.webhookId, status: 'disabled' })
      return made
    },
    codes: ['refused', 'webhook_disabled'],
    says: /disabled by “ops”/,
    mended: well,
  },
  {
    cause: 'three at once: it was dropped, the URL is another since, and the webhook is disabled',
    async make({ ended, webhook, url }) {
      const made = await ended({ status: 503 })
      await webhook({ id: made.webhookId, url: `${url}/new` })
      await webhook({ id: made.webhookId, status: 'disabled' })
      return made
    },
    codes: ['retries_exhausted', 'webhook_disabled', 'former_url'],
  },
  {
    cause: 'it was sent again, and was refused again',
    async make({ ended, settles, desk }) {
      const made = await ended({ status: 400 })
      const { delivery } = await desk.explained(made.webhookId, made.eventId)
      await desk.asked('mutation ($id: UUID!) { redeliver(deliveryId: $id) { id } }', { id: delivery!.id })
      await settles(made.webhookId, made.eventId)
      return made
    },
    codes: ['refused', 'sent_again'],
    says: /queued for this webhook once before/,
    mended: well,
  },
  {
    cause: 'the receiver had handled it, and said so too late',
    async make({ ended }) {
      let attempts = 0
      return ended(() => {
        attempts += 1
        if (attempts === 1) return 'reset'
        return { status: 401, headers: { 'www-authenticate': 'Bearer error_description="replay"' } }
      })
    },
    codes: ['handled_before'],
    ends: 'told',
  },
  {
    cause: 'the webhook that would heal itself waits for a ping',
    make: ({ ended }) => ended({ status: 500 }, { recovery: 'automatic' }),
    codes: ['retries_exhausted', 'heals'],
    says: /sent again by itself, once the endpoint answers a ping/,
    mended: well,
  },
  {
    cause: 'the receiver has lost what it acknowledged',
    make: ({ ended }) => ended({ status: 204 }),
    codes: ['acknowledged'],
  },
]

for (const engine of enginesHere()) play('tickets about endpoints that why solves', engine, TICKETS)
