import { link, policyOf, servePageFiles, unlessBuilt } from './page-files.ts'
import type { RequestState } from './request-id.ts'
import { Router } from './router.ts'

/** The editor creates styles at run time, and uses workers. */
const POLICY = policyOf({ 'style-src': "'self' 'unsafe-inline'", 'worker-src': "'self'" })

const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidings explorer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${link('explorer/view.css')}">
<div id="explorer"></div>
<script type="module" src="${link('explorer/view.js')}"></script>
`

/** Serves GraphiQL, which signs in the browser: it neither sends nor stores the secret. */
export const explorer = () => {
  const router = new Router<RequestState>()
  router.get('/explorer', ctx => {
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    ctx.body = PAGE + unlessBuilt('explorer')
  })
  const workers = ['editor', 'json', 'graphql'].map(name => `${name}.worker.js`)
  servePageFiles(router, 'explorer', ['view.js', 'view.css', ...workers])
  return router.routes()
}
