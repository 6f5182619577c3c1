// npm install koa tidings, then: node koa.ts
// In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import Koa from 'koa'
import { koaReceiver } from 'tidings/receiver'

const app = new Koa()

const hooks = koaReceiver(
  {
    issuer: process.env.ISSUER ?? 'http://127.0.0.1:4100',
    audience: process.env.AUDIENCE ?? 'http://127.0.0.1:3000/hooks',
  },
  async event => {
    switch (event.eventType) {
      case 'project_report_quarterly_submitted':
        return console.log(
          `${event.payload.projectReport.submitterName} submitted ${event.payload.projectReport.quarter}`,
        )
      case 'token_expired':
        return console.log(`Access token ${event.payload.accessTokenId} has expired`)
      default:
        return console.log(`Nothing to do for ${event.eventType}`)
    }
  },
)

app.use((ctx, next) => (ctx.path === '/hooks' ? hooks(ctx) : next()))
app.listen(Number(process.env.PORT ?? 3000))
