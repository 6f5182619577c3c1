import { type Signer, signedHeaders, signerOf } from './sign.ts'

// Sends an example of an event to a webhook, and tells what becomes of it. Key and secret stay in this page's memory.

const API = new URL('graphql', location.href)

const WEBHOOKS = `{
  webhooks(query: { selector: { status: "active" }, sort: [{ id: "desc" }], limit: 100 }) { id name url }
}`
const SEND = `mutation ($webhookId: UUID!, $eventType: EventType!) {
  delivery: sendExample(webhookId: $webhookId, eventType: $eventType) { id }
}`
const DELIVERY = `query ($id: String) {
  deliveries(query: { selector: { id: $id } }) {
    id eventType status attemptCount nextAttemptAt
    attempts { number startedAt durationMs statusCode failure response }
  }
}`

type Attempt = { durationMs: number; statusCode: number | null; failure: string | null }
type Delivery = { status: string; attemptCount: number; nextAttemptAt: string | null; attempts: Attempt[] }

const sleep = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

/** What is refused because the server is busy is asked again when it says so, for this long. */
const PATIENCE_MS = 20_000

const ask = async <Data>(signer: Signer, query: string, variables: object = {}): Promise<Data> => {
  const body = JSON.stringify({ query, variables })
  const until = performance.now() + PATIENCE_MS
  while (true) {
    const headers = { 'content-type': 'application/json', ...(await signedHeaders(signer, API, body)) }
    const response = await fetch(API, { method: 'POST', body, headers })
    const { data, errors } = await response.json()
    if (!errors) return data
    const waitMs = Number(response.headers.get('retry-after')) * 1000
    const isBusy = errors[0].extensions?.code === 'UNAVAILABLE' && waitMs > 0
    if (!isBusy || performance.now() + waitMs > until) throw new Error(errors[0].message)
    await sleep(waitMs)
  }
}

const LOOK_EVERY_MS = 300
/** An endpoint has 15 s to answer. */
const LOOK_FOR_MS = 20_000

/** A delivery after its first attempt, or as it is when that takes too long. A look that fails is made again. */
const firstAttemptOf = async (signer: Signer, id: string): Promise<Delivery> => {
  const until = performance.now() + LOOK_FOR_MS
  while (true) {
    const isLast = performance.now() > until
    const look = ask<{ deliveries: Delivery[] }>(signer, DELIVERY, { id })
    const found = isLast ? await look : await look.catch(() => undefined)
    const delivery = found?.deliveries[0]
    // A delivery and its attempts are read one after the other: an attempt may be recorded in between.
    const isWhole = delivery && delivery.attempts.length > 0 && delivery.attempts.length === delivery.attemptCount
    if (delivery && (isLast || isWhole)) return delivery
    if (isLast) throw new Error('The delivery is no longer to be seen.')
    await sleep(LOOK_EVERY_MS)
  }
}

const toldOf = ({ status, nextAttemptAt, attempts }: Delivery): string => {
  const last = attempts.at(-1)
  if (!last) return 'It waits to be sent, or to be pulled by a client.'
  const answer = last.statusCode === null ? `gave no answer (${last.failure})` : `answered ${last.statusCode}`
  const next = status === 'pending' && nextAttemptAt ? ` It comes again at ${nextAttemptAt}.` : ''
  return `The endpoint ${answer} after ${last.durationMs} ms: the delivery is ${status}.${next}`
}

/** Makes the section of the docs that tries it work. Returns what chooses an event there. */
export const startTrying = (section: HTMLElement): ((eventType: string) => void) => {
  const [signIn, send] = section.querySelectorAll('form') as unknown as [HTMLFormElement, HTMLFormElement]
  const status = section.querySelector<HTMLElement>('[role=status]')!
  const shown = section.querySelector<HTMLElement>('pre')!
  const named = <Field extends HTMLElement>(name: string) => section.querySelector<Field>(`[name=${name}]`)!
  const webhooks = named<HTMLSelectElement>('webhookId')
  let signer: Signer | undefined

  /** Says what is done meanwhile and what has come of it, an error too. */
  const telling = async (meanwhile: string, work: () => Promise<string>): Promise<void> => {
    status.textContent = meanwhile
    status.textContent = await work().catch((error: Error) => error.message)
  }

  signIn.addEventListener('submit', event => {
    event.preventDefault()
    void telling('Signing …', async () => {
      const given = Object.fromEntries(new FormData(signIn)) as { apiKey: string; apiSecret: string }
      const made = await signerOf(given)
      const found = await ask<{ webhooks: { id: string; name: string | null; url: string }[] }>(made, WEBHOOKS)
      if (found.webhooks.length === 0) return 'This token sees no active webhook. Such as: tidings listen --register'
      webhooks.replaceChildren(...found.webhooks.map(({ id, name, url }) => new Option(name || url, id)))
      signer = made
      signIn.reset()
      signIn.hidden = true
      send.hidden = false
      return `Signing as ${made.apiKey}.`
    })
  })

  send.addEventListener('submit', event => {
    event.preventDefault()
    void telling('Sending …', async () => {
      const { delivery } = await ask<{ delivery: { id: string } }>(
        signer!,
        SEND,
        Object.fromEntries(new FormData(send)),
      )
      const sent = await firstAttemptOf(signer!, delivery.id)
      shown.textContent = JSON.stringify(sent, null, 2)
      shown.hidden = false
      // What scrolls is reached by the keyboard too.
      shown.tabIndex = 0
      return toldOf(sent)
    })
  })

  return eventType => {
    named<HTMLSelectElement>('eventType').value = eventType
    section.scrollIntoView()
    const first = signer ? webhooks : named('apiKey')
    first.focus({ preventScroll: true })
  }
}
