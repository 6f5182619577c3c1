// Install the packed kit (docs/receivers/javascript.md), then with TIDINGS_URL, TIDINGS_API_KEY, TIDINGS_API_SECRET and
// WEBHOOK_ID: node worker.ts
import { pullDeliveries } from '@tidings/receiver'

const {
  TIDINGS_URL = 'http://127.0.0.1:4100',
  TIDINGS_API_KEY = '',
  TIDINGS_API_SECRET = '',
  WEBHOOK_ID = '',
} = process.env

const pulling = pullDeliveries({
  server: TIDINGS_URL,
  credential: { apiKey: TIDINGS_API_KEY, apiSecret: TIDINGS_API_SECRET },
  webhookId: WEBHOOK_ID,
  handler: async event => console.log(event.eventType, event.payload),
  concurrency: 10,
})

// What was taken is answered before the process ends.
process.once('SIGTERM', () => pulling.stop())
process.once('SIGINT', () => pulling.stop())
await pulling.ended
