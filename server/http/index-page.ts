import type { Config } from '../config.ts'
import { answerJson } from './json.ts'
import type { RequestState } from './request-id.ts'
import { Router } from './router.ts'

/** Serves the list of addresses, as JSON for programs and as a page for browsers. */
export const indexPage = ({ baseUrl, roles, operations }: Pick<Config, 'baseUrl' | 'roles' | 'operations'>) => {
  const router = new Router<RequestState>()
  const places = { ...(roles.includes('api') ? API : {}), ...ALWAYS, ...(operations ? {} : HEALTH) }
  const base = baseUrl.replace(/\/+$/, '')
  const json = Object.fromEntries(Object.entries(places).map(([name, { path }]) => [name, base + path]))
  const page = pageOf(Object.values(places))
  router.get('/', ctx => {
    ctx.vary('Accept')
    if (ctx.accepts('application/json', 'text/html') !== 'text/html') {
      return answerJson(ctx, { service: 'Tidings', ...json })
    }
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    ctx.body = page
  })
  return router.routes()
}

type Place = { path: string; text: string }

const API: Record<string, Place> = {
  graphql: { path: '/graphql', text: 'The GraphQL API. Requests must be signed.' },
  explorer: { path: '/explorer', text: 'The GraphQL API in the browser, which signs the requests.' },
}
const ALWAYS: Record<string, Place> = {
  docs: { path: '/docs', text: 'How to receive deliveries, with receivers in seven languages.' },
  webhooks: { path: '/spec/webhooks.json', text: 'The OpenAPI 3.1.2 description of the deliveries.' },
  schema: { path: '/spec/schema.graphql', text: 'The schema of the GraphQL API.' },
  keys: { path: '/.well-known/jwks.json', text: 'The public keys for verifying delivery tokens.' },
}
/** Listed only if there is no address for operations. */
const HEALTH: Record<string, Place> = {
  live: { path: '/livez', text: 'Whether this process answers.' },
  ready: { path: '/readyz', text: 'Whether the server can serve requests.' },
}

const POLICY =
  "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const pageOf = (places: Place[]): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidings</title>
<style>
  :root { color-scheme: light dark }
  body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 44rem; padding: 1rem }
  dd { margin: 0 0 .75rem }
</style>
<h1>Tidings</h1>
<dl>
${places.map(({ path, text }) => `<dt><a href=".${path}"><code>${path}</code></a></dt><dd>${text}</dd>`).join('\n')}
</dl>
`
