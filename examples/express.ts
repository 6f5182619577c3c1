// npm install express tidings, then: node express.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import express from 'express'
import { expressReceiver } from 'tidings/receiver'

const app = express()

app.post(
  '/hooks',
  expressReceiver(
    {
      issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
      audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
    },
    async event => {
      if (event.eventType === 'unknown') return console.log(`Newer than this receiver: ${event.unknownType}`)
      console.log(event.eventType, event.payload)
    },
  ),
)

// After the receiver: it reads the body itself.
app.use(express.json())
app.listen(Number(process.env.PORT ?? 3000))
