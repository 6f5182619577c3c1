import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { setTimeout as wait } from 'node:timers/promises'
import { decodeJwt } from 'jose'
import { type Jwk, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { eventually } from '../support/eventually.ts'
import { type Arrival, openArrivals } from './arrivals.ts'
import { type Action, actionOf, endpoints } from './endpoints.ts'
import { seeded } from './random.ts'

// The endpoints of a run, in a process of their own without faults. Started with the path of the log and the seed.

export type ToReceivers = { keys: Jwk[]; issuer: string } | 'calm' | 'finish'
export type FromReceivers = { urls: string[] } | { arrived: number } | 'finished'

const [file, seed] = process.argv.slice(2) as [string, string]
const log = openArrivals(file)
const tell = (message: FromReceivers) => process.send!(message)
let keys: Jwk[] = []
let issuer = ''
let arrived = 0
let isCalm = false
const complete: Arrival[] = []
const open = new Set<Arrival>()
const before = new Map<string, number>()

const receive = async (request: IncomingMessage, response: ServerResponse, endpoint: number, url: string) => {
  const arrivedAt = Date.now()
  arrived += 1
  const token = (request.headers.authorization ?? '').replace(/^Bearer /, '')
  const { jti = '', iat = null, exp = null } = claimsOf(token)
  const seen = before.get(jti) ?? 0
  before.set(jti, seen + 1)
  const action = actionOf(endpoints[endpoint]!.behaviour, jti, seen)
  const arrival: Arrival = {
    endpoint,
    jti,
    arrivedAt,
    answeredAt: null,
    endedAt: null,
    did: action.do,
    status: null,
    isWritten: false,
    iat,
    exp,
    wrong: request.url === new URL(url).pathname ? null : `asked for ${request.url}`,
  }
  open.add(arrival)
  const end = () => {
    if (!open.delete(arrival)) return
    arrival.endedAt = Date.now()
    complete.push(arrival)
  }
  response.on('finish', () => {
    arrival.isWritten = true
    end()
  })
  response.on('close', end)
  if (action.do === 'reset' && !action.afterBody) return void request.socket.resetAndDestroy()
  const body = await text(request).catch(() => undefined)
  if (body === undefined) return
  const { ok, checks } = await verifyDeliveryToken(token, { keys, issuer, audience: url, body })
  if (!ok) {
    const failed = checks.filter(check => check.status === 'failed')
    arrival.wrong = failed
      .map(({ name, expected, found }) => `${name}: expected ${expected}, found ${found}`)
      .join('; ')
  }
  await carryOut(action, response, arrival)
}

const claimsOf = (token: string): { jti?: string; iat?: number; exp?: number } => {
  try {
    return decodeJwt(token)
  } catch {
    return {}
  }
}

const carryOut = async (action: Action, response: ServerResponse, arrival: Arrival): Promise<void> => {
  if (action.do === 'hang') return
  if (action.do === 'reset') return void response.socket?.resetAndDestroy()
  if (action.do === 'babble') return void response.socket?.end(action.bytes, 'latin1')
  if (action.delayMs) await wait(action.delayMs)
  if (response.destroyed) return
  const { status, headers = {} } = action
  arrival.status = status
  arrival.answeredAt = Date.now()
  if (action.body === undefined) return void response.writeHead(status, headers).end()
  const headSent = () => {
    arrival.isWritten = true
  }
  if (action.body === 'cut') {
    response.writeHead(status, { 'content-length': 1000 })
    response.write('cut', () => {
      headSent()
      response.socket?.destroy()
    })
  } else {
    response.writeHead(status)
    response.write('.', headSent)
    await pipeline(action.body === 'endless' ? endless : trickle, response).catch(() => {})
  }
}

const CHUNK = Buffer.alloc(16_384, 'x')
const endless = function* () {
  for (;;) yield CHUNK
}
const trickle = async function* () {
  for (;;) {
    await wait(100)
    yield '.'
  }
}

const listen = (server: Server, port = 0): Promise<number> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', () => {
      server.off('error', reject)
      resolve((server.address() as AddressInfo).port)
    })
  })

/** Now and then an endpoint does not listen, until the calm phase. */
const refuseAtTimes = async (server: Server, port: number): Promise<void> => {
  const random = seeded(Number(seed))
  while (!isCalm) {
    await wait(500 + random() * 3000)
    if (isCalm) return
    const closed = new Promise(resolve => server.close(resolve))
    server.closeAllConnections()
    await closed
    await wait(200 + random() * 1500)
    // Another connection of this machine may have been given the port meanwhile.
    await eventually(`port ${port} to be free again`, () => listen(server, port), Boolean, { everyMs: 100 })
  }
}

const urls: string[] = []
for (const [index, { behaviour }] of endpoints.entries()) {
  const server: Server = createServer((request, response) => {
    receive(request, response, index, urls[index]!).catch(error => {
      console.error(error)
      process.exit(1)
    })
  })
  server.on('clientError', (_error, socket) => socket.destroy())
  server.keepAliveTimeout = 20_000
  const port = await listen(server)
  urls.push(`http://127.0.0.1:${port}/${behaviour}`)
  if (behaviour === 'refusing') void refuseAtTimes(server, port)
}

const flush = () => {
  if (complete.length > 0) log.add(complete.splice(0))
}
const flushing = setInterval(flush, 50)
setInterval(() => tell({ arrived }), 1000)

process.on('message', (message: ToReceivers) => {
  if (message === 'calm') isCalm = true
  else if (message === 'finish') {
    clearInterval(flushing)
    flush()
    log.add([...open])
    log.close()
    process.send!('finished' satisfies FromReceivers, () => process.exit())
  } else ({ keys, issuer } = message)
})
process.on('disconnect', () => process.exit())
tell({ urls })
