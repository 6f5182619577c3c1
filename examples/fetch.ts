// Every framework of the Fetch API accepts the receiver: `Deno.serve(receive)`, `Bun.serve({ fetch: receive })`,
// Hono's `app.post('/hooks', c => receive(c.req.raw))`, or in Next.js `export const POST = receive`. Here it runs in
// Node.
// Install the packed kit (docs/receivers/javascript.md), then: node fetch.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import { createServer } from 'node:http'
import { Readable } from 'node:stream'
import { fetchReceiver } from '@tidings/receiver'

const receive = fetchReceiver(
  {
    issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
    audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
  },
  async event => console.log(event.eventType, event.payload),
)

createServer(async (incoming, outgoing) => {
  const hasBody = incoming.method !== 'GET' && incoming.method !== 'HEAD'
  const response = await receive(
    new Request(new URL(incoming.url ?? '/', 'http://127.0.0.1'), {
      method: incoming.method ?? 'GET',
      headers: incoming.headers as Record<string, string>,
      ...(hasBody && { body: Readable.toWeb(incoming) as ReadableStream, duplex: 'half' }),
    }),
  )
  outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(await response.text())
}).listen(Number(process.env.PORT ?? 3000))
