// Install fastify and the packed kit (docs/receivers/javascript.md), then: node fastify.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import { fastifyReceiver, RetryLater } from '@tidings/receiver'
import Fastify from 'fastify'

const app = Fastify()
const queue: object[] = []

app.register(
  fastifyReceiver(
    {
      issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
      audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
    },
    async event => {
      // Answer first, work later. If the queue is full, nothing is lost: each delivery comes again half a minute later.
      if (queue.length >= 1000) throw new RetryLater(30)
      queue.push(event)
      console.log(event.eventType, event.payload)
    },
  ),
  { prefix: '/hooks' },
)

await app.listen({ port: Number(process.env.PORT ?? 3000) })
