// An AWS Lambda function behind a function URL, or an HTTP API with payload format 2.0. Install the packed kit
// (docs/receivers/javascript.md), and bundle it:
// npx esbuild lambda.ts --bundle --platform=node --format=esm --outfile=index.mjs
import { lambdaReceiver } from '@tidings/receiver'

export const handler = lambdaReceiver(
  {
    issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
    audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
    // Lambda's processes come and go: in production, pass a store that they share. See docs/receivers/javascript.md.
  },
  async event => console.log(event.eventType, event.payload),
)
