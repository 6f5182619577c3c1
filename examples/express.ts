// Install express and the packed kit (docs/receivers/javascript.md), then: node express.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import { expressReceiver } from '@tidings/receiver'
import express from 'express'

const app = express()

app.post(
  '/hooks',
  expressReceiver(
    {
      issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
      audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
      onRefused: ({ code, expected, found }) => console.warn('refused:', code, { expected, found }),
    },
    async (event, { attempt }) => {
      if (event.eventType === 'unknown') return console.log(`Newer than this receiver: ${event.unknownType}`)
      console.log(event.eventType, event.payload, `attempt ${attempt}`)
    },
  ),
)

// After the receiver: it reads the body itself.
app.use(express.json())
app.listen(Number(process.env.PORT ?? 3000))
