// Install koa and the packed kit (docs/receivers/javascript.md), then: node koa.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import { createReceiver, koaReceiver } from '@tidings/receiver'
import Koa from 'koa'

const receiver = createReceiver({
  issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
  audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
})
  .on('project_report_quarterly_submitted', ({ payload: { projectReport } }) =>
    console.log(`${projectReport.submitterName} submitted ${projectReport.quarter}`),
  )
  .on('token_expired', ({ payload }) => console.log(`Access token ${payload.accessTokenId} has expired`))
  .otherwise(event => console.log(`Nothing to do for ${event.eventType}`))

const hooks = koaReceiver(receiver)
const app = new Koa()
app.use((ctx, next) => (ctx.path === '/hooks' ? hooks(ctx) : next()))
app.listen(Number(process.env.PORT ?? 3000))
