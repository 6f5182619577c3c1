import type { KeyContext } from '../keys.ts'
import { type TestDelivery, type TestSender, testSender } from './test-sender.ts'

export interface TestServer extends TestSender {
  /**
   * Sends a delivery as Tidings does: by POST, without following redirects. Its audience is the URL. Rejects if the URL
   * cannot be reached.
   */
  deliver<Type extends string>(url: string, delivery?: TestDelivery<Type>): Promise<Response>
  close(): Promise<void>
}

/**
 * A server on the loopback address that publishes a test key as Tidings does, to be a receiver's `issuer`. For Node,
 * Bun and Deno. Rejects if the port is taken.
 *
 * @param options.port by default any free port
 * @example
 *   const tidings = await startTestServer()
 *   const response = await tidings.deliver('http://127.0.0.1:3000/hooks')
 */
export const startTestServer = async ({ port = 0 }: { port?: number } = {}): Promise<TestServer> => {
  // Named at run time: bundlers for Workers and browsers have no such module, and need none.
  const name = 'node:http'
  const { createServer } = (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as NodeHttp
  let sender: TestSender | undefined
  const server = createServer(async (request, response) => {
    const isKeySet = request.url === '/.well-known/jwks.json' && sender !== undefined
    response.writeHead(isKeySet ? 200 : 404, { 'content-type': 'application/json', 'cache-control': 'max-age=300' })
    response.end(isKeySet ? JSON.stringify(await sender!.keySet()) : '{}')
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', resolve)
  })
  const issuer = `http://127.0.0.1:${(server.address() as { port: number }).port}`
  const ready = testSender({ issuer })
  sender = ready
  return {
    ...ready,
    async deliver(url, delivery) {
      const { method, headers, body } = await ready.sign({ audience: url, ...delivery })
      return fetch(url, { method, headers, body, redirect: 'manual' })
    },
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

type NodeHttp = typeof import('node:http')

const shared = testSender()

/**
 * Signs a delivery from the issuer `https://tidings.test` to `https://receiver.test/hooks`, unless it says otherwise.
 *
 * @example
 *   const { request } = await signDelivery({ eventType: 'token_expired' })
 */
export const signDelivery = <Type extends string>(delivery?: TestDelivery<Type>) => shared.sign(delivery)
/** The private JWK that `signDelivery` signs with. */
export const testKey = () => shared.key()
/** The public key of `signDelivery`, for the option `keys` of a receiver. */
export const testKeys = (_kid?: string, _context?: KeyContext) => shared.keys()
/** The key set of `signDelivery`, as `/.well-known/jwks.json` answers it. */
export const testKeySet = () => shared.keySet()
