import { randomUUID } from 'node:crypto'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { eventually } from '../support/eventually.ts'

export type LiveEvent = {
  event: string
  id: string | undefined
  // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
  data: any
}

export type Subscribed = {
  status: number
  type: string | null
  /** Everything that came, oldest first. */
  events: LiveEvent[]
  /** The last id that came, with an event or without. */
  readonly lastId: string | undefined
  readonly isClosed: boolean
  /** The body of what is no stream. */
  readonly text: string
  until(what: string, isSo: (events: LiveEvent[]) => boolean): Promise<LiveEvent[]>
  closed(): Promise<unknown>
  leave(): void
}

/** Sends a signed subscription, and reads what comes as server-sent events are read. */
export const subscribe = async (
  base: string,
  credentials: Credentials,
  query: string,
  {
    variables = {},
    headers = {},
    at = new Date(),
  }: { variables?: object; headers?: Record<string, string>; at?: Date } = {},
): Promise<Subscribed> => {
  const url = new URL('/graphql', base)
  const body = JSON.stringify({ query, variables })
  const signed = signRequest({ method: 'POST', url, body, credentials, at, nonce: randomUUID() })
  const leaving = new AbortController()
  const response = await fetch(url, {
    method: 'POST',
    headers: { ...signed, 'content-type': 'application/json', accept: 'text/event-stream', ...headers },
    body,
    signal: leaving.signal,
  })
  const events: LiveEvent[] = []
  const seen = { text: '', lastId: undefined as string | undefined, isClosed: false }
  const take = (block: string): void => {
    const field = (name: string) => new RegExp(`^${name}: ?(.*)$`, 'm').exec(block)?.[1]
    const id = field('id')
    if (id) seen.lastId = id
    const event = field('event')
    const data = field('data')
    if (event) events.push({ event, id, data: data ? JSON.parse(data) : undefined })
  }
  const read = async () => {
    let rest = ''
    for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
      seen.text += chunk
      const blocks = (rest + chunk).split('\n\n')
      rest = blocks.pop()!
      blocks.forEach(take)
    }
  }
  read()
    .catch(() => {})
    .finally(() => {
      seen.isClosed = true
    })
  return {
    status: response.status,
    type: response.headers.get('content-type'),
    events,
    get lastId() {
      return seen.lastId
    },
    get isClosed() {
      return seen.isClosed
    },
    get text() {
      return seen.text
    },
    until: (what, isSo) => eventually(what, () => events, isSo),
    closed: () =>
      eventually(
        'the stream to end',
        () => seen.isClosed,
        isClosed => isClosed,
      ),
    leave: () => leaving.abort(),
  }
}
