import { marked } from 'marked'
import { eventTypes } from '../../shared/vocabulary.ts'
import { schemaText } from '../graphql/schema.ts'
import { type DescribedEvent, eventSections } from './event-sections.ts'
import { answerJson } from './json.ts'
import { link, pageOf, policyOf, servePageFiles, unlessBuilt } from './page-files.ts'
import { PUBLIC } from './public.ts'
import { receiverPage, receiversIndex } from './receivers.ts'
import type { RequestState } from './request-id.ts'
import { Router } from './router.ts'

const POLICY = policyOf({})

type Described = {
  info: { title: string; summary: string; description: string }
  webhooks: Record<string, DescribedEvent>
}

/** Where an example can be sent to a webhook: `pages/try.ts` makes it work. */
const trySection = `<section id="try" aria-labelledby="title-try">
<h2 id="title-try">Try it</h2>
<p>Send an example of an event to a webhook of yours: signed, delivered, retried and logged like a real one.</p>
<noscript><p>This needs scripts. Without them: <code>tidings trigger token_expired</code></p></noscript>
<form>
<label>API key <input name="apiKey" required autocomplete="off" spellcheck="false"></label>
<label>Secret <input name="apiSecret" type="password" required autocomplete="off"></label>
<button>Show my webhooks</button>
</form>
<form hidden>
<label>Webhook <select name="webhookId" required></select></label>
<label>Event <select name="eventType">${eventTypes.map(type => `<option>${type}</option>`).join('')}</select></label>
<button>Send</button>
</form>
<p role="status">The secret stays in this page’s memory, and is never sent.</p>
<pre hidden></pre>
</section>`

/**
 * The page for authors of receivers: what comes and what to do, a receiver to copy, and the description of each event.
 */
const docsPage = ({ info, webhooks }: Described): string =>
  pageOf({
    title: info.title,
    body: `<a class="skip" href="#content">Skip to the content</a>
<header><nav aria-label="Pages"><a href=".">This server</a><a href="#receivers">Receivers</a>
<a href="#try">Try it</a><a href="#every-event">Events</a><a href="explorer">Explorer</a>
<a href="spec/webhooks.json">OpenAPI</a></nav></header>
<main id="content">
<h1>${info.title}</h1>
${marked.parse(info.description, { async: false })}
<h2 id="receivers">Receivers</h2>
${receiversIndex()}
${trySection}
<h2 id="every-event">Events</h2>
<ul class="types">
${Object.keys(webhooks)
  .map(type => `<li><a href="#event-${type}"><code>${type}</code></a></li>`)
  .join('\n')}
</ul>
${eventSections(webhooks)}
</main>
<script type="module" src="${link('docs/view.js')}"></script>
`,
  })

/** Serves the descriptions of both APIs, and pages that show the one of webhooks, from the package's own files. */
export const docs = (spec: Described) => {
  const router = new Router<RequestState>()
  let page: string | undefined
  router.get('/spec/webhooks.json', ctx => {
    ctx.set(PUBLIC)
    answerJson(ctx, spec)
  })
  router.get('/spec/schema.graphql', ctx => {
    ctx.set(PUBLIC)
    // There is no registered media type for a schema; browsers show this one.
    ctx.type = 'text/plain; charset=utf-8'
    ctx.body = schemaText
  })
  router.get('/docs', ctx => {
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    page ??= docsPage(spec)
    ctx.body = page + unlessBuilt('docs')
  })
  router.get('/docs/receivers/:name', async (ctx, next) => {
    const found = await receiverPage(ctx.params.name!)
    if (found === undefined) return next()
    ctx.set('Content-Security-Policy', POLICY)
    ctx.type = 'html'
    ctx.body = found
  })
  servePageFiles(router, 'docs', ['view.js', 'style.css'])
  return router.routes()
}
