import type { KeyContext } from '../keys.ts'
import { type TestDelivery, type TestSender, testSender } from './test-sender.ts'

export interface TestServer extends TestSender {
  /** Sends a delivery as Tidings does: by POST, without following redirects. Its audience is the URL. */
  deliver<Type extends string>(url: string, delivery?: TestDelivery<Type>): Promise<Response>
  close(): Promise<void>
}

/**
 * A server that publishes a test key as Tidings does, on this machine's loopback address: what a receiver takes as its
 * `issuer`. For Node, Bun and Deno.
 *
 * @param options.port any that is free unless given
 */
export const startTestServer = async ({ port = 0 }: { port?: number } = {}): Promise<TestServer> => {
  const { createServer } = await import('node:http')
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

const shared = testSender()

/** Signs a delivery of the issuer `https://tidings.test` to `https://receiver.test/hooks`, unless it says otherwise. */
export const signDelivery = <Type extends string>(delivery?: TestDelivery<Type>) => shared.sign(delivery)
/** The key that `signDelivery` signs with, as a private JWK. */
export const testKey = () => shared.key()
/** Its public key, for the option `keys` of a receiver. */
export const testKeys = (_kid?: string, _context?: KeyContext) => shared.keys()
/** Its key set, as `/.well-known/jwks.json` answers it. */
export const testKeySet = () => shared.keySet()
