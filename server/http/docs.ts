import { createReadStream } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import Router from '@koa/router'
import { schemaText } from '../graphql/schema.ts'
import { PUBLIC } from './public.ts'
import { receiverPage, receiversIndex } from './receivers.ts'
import type { RequestState } from './request-id.ts'

const assets = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'))

const FILES: Record<string, string> = {
  'swagger-ui.css': 'text/css',
  'swagger-ui-bundle.js': 'text/javascript',
  'favicon-32x32.png': 'image/png',
}

/** Whatever the view would ask of another host, the browser refuses. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
  "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidings webhooks</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<!-- Tidings calls and is not called: nothing to authorize, and no operations besides the webhooks. -->
<style>.swagger-ui .scheme-container, .swagger-ui h3:not([class]) { display: none }</style>
${receiversIndex}
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/view.js"></script>
`

const VIEW = `SwaggerUIBundle({
  url: 'spec/webhooks.json', dom_id: '#docs', validatorUrl: null,
  supportedSubmitMethods: [], docExpansion: 'list', defaultModelExpandDepth: 5,
})
`

/** The descriptions of both APIs, and a page of this package's own files that shows the one of webhooks. */
export const docs = (spec: object) => {
  const router = new Router<RequestState>()
  router.get('/spec/webhooks.json', ctx => {
    ctx.set(PUBLIC)
    ctx.body = spec
  })
  router.get('/spec/schema.graphql', ctx => {
    ctx.set(PUBLIC)
    // There is no registered type for a schema; browsers show this one.
    ctx.type = 'text/plain; charset=utf-8'
    ctx.body = schemaText
  })
  router.get('/docs', ctx => {
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    ctx.body = PAGE
  })
  router.get('/docs/receivers/:name', async (ctx, next) => {
    const page = await receiverPage(ctx.params.name!)
    if (page === undefined) return next()
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    ctx.body = page
  })
  router.get('/docs/view.js', ctx => {
    ctx.type = 'text/javascript'
    ctx.body = VIEW
  })
  for (const [file, type] of Object.entries(FILES)) {
    router.get(`/docs/${file}`, ctx => {
      ctx.set('Cache-Control', 'public, max-age=86400')
      ctx.type = type
      ctx.body = createReadStream(join(assets, file))
    })
  }
  return router.routes()
}
