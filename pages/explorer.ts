import 'graphiql/style.css'
import './explorer.css'
import { GraphiQL } from 'graphiql'
import { buildSchema, type GraphQLSchema, Kind, parse } from 'graphql'
import { createElement as h, type SubmitEvent, useEffect, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { resultsOf } from '../shared/server-sent-events.ts'
import { type Signer, signedHeaders, signerOf } from './sign.ts'

// The explorer of the GraphQL API. It keeps key and secret only in this page's memory.

const WORKERS: Record<string, string> = { json: 'json.worker.js', graphql: 'graphql.worker.js' }
Object.assign(globalThis, {
  MonacoEnvironment: {
    getWorker: (_id: string, label: string) =>
      new Worker(new URL(`explorer/${WORKERS[label] ?? 'editor.worker.js'}`, location.href), { type: 'module' }),
  },
})

const API = new URL('graphql', location.href)
/** `tidings explore` serves this page through a proxy that signs. */
const isSignedOnTheWay = location.hash === '#signed'

const FIRST = `# Ctrl-Enter runs it.
{
  viewer { name permissions }
  deliveries(
    query: { sort: [{ id: "desc" }], limit: 5 }
  ) {
    eventType status
    webhook { url }
  }
}
`

type Asked = { query: string; variables?: unknown; operationName?: string | null }

const fetcherFor = (signer: Signer | undefined) => async (asked: Asked) => {
  const body = JSON.stringify(asked)
  const isLive = isSubscription(asked)
  const response = await fetch(API, {
    method: 'POST',
    body,
    headers: {
      'content-type': 'application/json',
      accept: isLive ? 'text/event-stream, application/json;q=0.5' : 'application/json',
      ...(signer && (await signedHeaders(signer, API, body))),
    },
  })
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream')
  return isStream ? resultsOf(response.body!.getReader()) : response.json()
}

const isSubscription = ({ query, operationName }: Asked): boolean =>
  parse(query).definitions.some(
    it =>
      it.kind === Kind.OPERATION_DEFINITION &&
      it.operation === 'subscription' &&
      (!operationName || it.name?.value === operationName),
  )

const Explorer = ({ schema }: { schema: GraphQLSchema }) => {
  const [signer, setSigner] = useState<Signer>()
  const mayAsk = isSignedOnTheWay || signer !== undefined
  return h(
    'div',
    { className: 'explorer' },
    h(
      'header',
      null,
      h('h1', { className: 'unseen' }, 'Tidings explorer'),
      isSignedOnTheWay ? null : h(SignIn, { signer, onSigner: setSigner }),
    ),
    h(
      'main',
      null,
      h(GraphiQL, {
        fetcher: (mayAsk ? fetcherFor(signer) : refuse) as never,
        schema,
        defaultQuery: FIRST,
        isHeadersEditorEnabled: false,
        shouldPersistHeaders: false,
        showPersistHeadersSettings: false,
      } as never),
    ),
  )
}

const refuse = async () => ({ errors: [{ message: 'First enter an API key and its secret above.' }] })

const SignIn = ({ signer, onSigner }: { signer: Signer | undefined; onSigner: (signer?: Signer) => void }) => {
  const [fault, setFault] = useState('')
  const signIn = async (event: SubmitEvent<HTMLFormElement>) => {
    event.preventDefault()
    const form = event.currentTarget
    const { apiKey, apiSecret } = Object.fromEntries(new FormData(form)) as { apiKey: string; apiSecret: string }
    try {
      onSigner(await signerOf({ apiKey, apiSecret }))
      setFault('')
      form.reset()
    } catch (error) {
      setFault((error as Error).message)
    }
  }
  if (signer) {
    return h(
      'p',
      { className: 'signing' },
      'Signing as ',
      h('code', null, signer.apiKey),
      ' ',
      h('button', { type: 'button', onClick: () => onSigner(undefined) }, 'Forget'),
    )
  }
  const field = { required: true, autoComplete: 'off', spellCheck: false }
  return h(
    'form',
    { className: 'signing', onSubmit: signIn as never },
    h('label', null, 'API key ', h('input', { name: 'apiKey', ...field })),
    h('label', null, 'Secret ', h('input', { name: 'apiSecret', type: 'password', ...field })),
    h('button', { type: 'submit' }, 'Use'),
    h('span', { role: 'alert' }, fault || 'The secret stays in this page’s memory, and is never sent.'),
  )
}

const Page = () => {
  const [schema, setSchema] = useState<GraphQLSchema>()
  const [fault, setFault] = useState('')
  useEffect(() => {
    fetch(new URL('spec/schema.graphql', location.href))
      .then(response => response.text())
      .then(text => setSchema(buildSchema(text)))
      .catch(error => setFault(`The schema cannot be loaded: ${error.message}`))
  }, [])
  return schema ? h(Explorer, { schema }) : h('p', { className: 'signing' }, fault || 'Loading the schema …')
}

/** GraphiQL's tabs hold buttons, which a tab may not: without the roles they are a list of buttons. */
const withoutTabRoles = (): void => {
  for (const element of document.querySelectorAll('.graphiql-tabs, .graphiql-tabs > [role=tab]')) {
    for (const name of ['role', 'aria-selected']) element.removeAttribute(name)
  }
}
new MutationObserver(withoutTabRoles).observe(document.getElementById('explorer')!, {
  attributeFilter: ['role', 'aria-selected'],
  childList: true,
  subtree: true,
})

createRoot(document.getElementById('explorer')!).render(h(Page))
