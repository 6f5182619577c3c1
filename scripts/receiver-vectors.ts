// node scripts/receiver-vectors.ts: writes docs/receivers/vectors.json, deliveries with the answers that a receiver
// must give. A test says when to run it again.
import { mkdirSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import {
  type Changed,
  type DeliveryVector,
  deliveryVectors,
  vector,
} from '../server/delivery/rehearsal/delivery-vectors.ts'
import { audience, body, good, iat, issuer, keys, kid, mint, now, webhookId } from '../test/receiver/tokens.ts'

export interface Vector {
  name: string
  /** By default POST. */
  method?: string
  /** The header as it arrives; null if there is none. */
  authorization: string | null
  /** The body as text, or as base64 if it is not valid text. */
  body?: string
  bodyBase64?: string
  /** The number of spaces that come after the body. */
  spaces?: number
  /** The answer of the issuer's key set: a name in `keySets`. */
  keySet: string
  /** The receiver's own webhooks, if it knows them. */
  webhookIds?: string[]
  /** The receiver's clock, in epoch seconds. */
  time: number
  /** The answer that RFCs leave open, and that a receiver should give nonetheless. */
  advisable?: true
  verdict: Verdict
}

export interface Verdict {
  status: number
  /** The check that fails. */
  code: string
  /** The event's own id as the handler gets it; null if nothing reaches the handler. */
  handled: string | null
}

/** Deliveries to one receiver, one after the other. */
export interface Sequence {
  name: string
  /** As of a vector. */
  advisable?: true
  steps: {
    authorization: string
    body: string
    time: number
    /** What the handler does, if it is reached: by default it returns. */
    handler?: 'fails'
    /** Whether it comes while the one before it is being handled, such as from within its handler. */
    during?: true
    verdict: Verdict
  }[]
}

const time = now.getTime() / 1000
const fields = JSON.parse(body)
const json = JSON.stringify

/** A vector of the file: a delivery vector of the fixed mint, and what the receiver has. */
const written = async (
  { name, code, isAdvisable, make }: DeliveryVector,
  having: Pick<Partial<Vector>, 'keySet' | 'webhookIds' | 'time'> = {},
): Promise<Vector> => {
  const changed = await make(mint)
  const content = changed.bodyBase64 === undefined ? { body: changed.body ?? body } : {}
  const given = { authorization: `Bearer ${good}`, ...content, keySet: 'published', time, ...changed, ...having }
  return { name, ...given, ...(isAdvisable && { advisable: true as const }), verdict: verdictOf(code, given) }
}
const STATUS: Record<string, number> = {
  ok: 200,
  method: 405,
  body_too_large: 413,
  body: 500,
  keys_unavailable: 503,
  in_progress: 503,
  handler_failed: 500,
}
const verdictOf = (code: string, given: { authorization: string | null; body?: string }): Verdict => {
  const isHandled = code === 'ok' && (given.body === undefined || JSON.parse(given.body).eventType !== 'ping')
  return { status: STATUS[code] ?? 401, code, handled: isHandled ? idIn(given.authorization!) : null }
}

/** The event's own id: the token's `sub`, or its `jti` where there is none. */
const idIn = (authorization: string): string => {
  const claims = JSON.parse(Buffer.from(authorization.split('.')[1]!, 'base64url').toString())
  return typeof claims.sub === 'string' && claims.sub !== '' ? claims.sub : claims.jti
}

const AS_USUAL = (): Changed => ({})
const having = (
  name: string,
  code: string,
  more: Parameters<typeof written>[1],
  make: DeliveryVector['make'] = AS_USUAL,
) => written(vector(name, code, make), more)
const telling =
  (changed: object): DeliveryVector['make'] =>
  it => {
    const told = json({ ...it.fields, ...changed })
    return { body: told, authorization: `Bearer ${it.tokenFor(told)}` }
  }

const ofWebhooks = [
  having('of one’s own webhook', 'ok', { webhookIds: [webhookId] }),
  having('of one of one’s own webhooks', 'ok', { webhookIds: ['other', webhookId] }),
  having('of somebody else’s webhook', 'webhook', { webhookIds: ['other'] }),
  having('of a webhook whose id begins as one’s own', 'webhook', { webhookIds: [webhookId.slice(0, -1)] }),
  having('of a webhook whose id is one’s own in capitals', 'webhook', { webhookIds: [webhookId.toUpperCase()] }),
  having('of a webhook whose id one’s own begins with', 'webhook', { webhookIds: [`${webhookId}0`] }),
  ...[[webhookId], { id: webhookId }, null, '', 7].map(it =>
    having(`of a webhook whose id is ${json(it)}`, 'webhook', { webhookIds: [webhookId] }, telling({ webhookId: it })),
  ),
  having('of no webhook', 'webhook', { webhookIds: [webhookId] }, telling({ webhookId: undefined })),
  having(
    'of a ping of somebody else’s webhook',
    'webhook',
    { webhookIds: ['other'] },
    telling({ eventType: 'ping', payload: {} }),
  ),
]

const keySet = (name: string, code: string, keySet: string, make?: DeliveryVector['make']) =>
  having(`a key set ${name}`, code, { keySet }, make)

const ofKeys = [
  keySet('with other kinds of things in it', 'ok', 'mixed'),
  keySet('in which the kid is no more', 'key', 'rotated'),
  keySet('in which the kid is a text, and a number in the token', 'key', 'numbered', it => ({
    authorization: `Bearer ${it.withHeader({ kid: 1 })}`,
  })),
  keySet('in which the key is of another kty', 'key', 'otherKty'),
  keySet('in which the key is on another curve', 'key', 'otherCrv'),
  keySet('without keys', 'keys_unavailable', 'empty'),
  keySet('whose keys are none', 'keys_unavailable', 'unusable'),
  keySet('whose key has a number for a name', 'keys_unavailable', 'unnamed'),
  keySet('that is a page', 'keys_unavailable', 'page'),
  keySet('that is a list', 'keys_unavailable', 'list'),
  keySet('that is away', 'keys_unavailable', 'away'),
  keySet('with status 500 and the right keys', 'keys_unavailable', 'failing'),
  keySet('that has moved', 'keys_unavailable', 'moved'),
  keySet('of more than 256 KiB', 'keys_unavailable', 'huge'),
]

const ofTimes = [
  having('the last second of a token', 'ok', { time: iat + 299 }),
  having('the second in which a token expires', 'expiry', { time: iat + 300 }),
  having('a token an hour old', 'expiry', { time: iat + 3600 }),
  having('a clock that is 60 s behind', 'ok', { time: iat - 60 }),
  having('a clock that is 61 s behind', 'issued_at', { time: iat - 61 }),
]

type Step = Sequence['steps'][number]
const step = (code: string, more: Partial<Step> = {}): Step => {
  const given = { authorization: `Bearer ${good}`, body, time, ...more }
  const isReached = code === 'ok' || code === 'handler_failed'
  const handled = isReached ? verdictOf('ok', given).handled : null
  return { ...given, verdict: { status: STATUS[code] ?? 401, code, handled } }
}
const pinged = json({ ...fields, eventType: 'ping', payload: {} })
const retry = { authorization: `Bearer ${mint.retryToken(5)}`, time: time + 5 }
const redelivered = json({ ...fields, eventId: 'another delivery' })
const redelivery = {
  body: redelivered,
  authorization: `Bearer ${mint.tokenFor(redelivered, { jti: 'another delivery' })}`,
}
const FAILS = { handler: 'fails' } as const
const DURING = { during: true } as const

const sequences: Sequence[] = [
  { name: 'a redelivery of what was handled', advisable: true, steps: [step('ok'), step('ok', redelivery)] },
  { name: 'the same request twice', steps: [step('ok'), step('replay')] },
  { name: 'a retry of what was handled', steps: [step('ok'), step('replay', retry)] },
  {
    name: 'a retry after the handler failed',
    steps: [step('handler_failed', FAILS), step('ok', retry), step('replay', retry)],
  },
  { name: 'a delivery while it is being handled', steps: [step('ok'), step('in_progress', DURING), step('replay')] },
  {
    name: 'a delivery while its handler is about to fail',
    steps: [step('handler_failed', FAILS), step('in_progress', DURING), step('ok', retry)],
  },
  {
    name: 'a delivery that was refused at first',
    steps: [step('expiry', { time: time + 600 }), step('body_digest', { body: `${body} ` }), step('ok')],
  },
  {
    name: 'a delivery in the name of another while it is being handled',
    steps: [step('ok'), step('signature', { ...DURING, authorization: `Bearer ${good.slice(0, -8)}` }), step('replay')],
  },
  {
    name: 'a ping twice',
    steps: [pinged, pinged].map((it, nth) =>
      step(nth === 0 ? 'ok' : 'replay', { body: it, authorization: `Bearer ${mint.tokenFor(it)}` }),
    ),
  },
]

const [own] = keys
const rotated = { ...own, kid: 'another' }

/** The text of docs/receivers/vectors.json. */
export const vectorsFile = async (): Promise<string> => {
  const made = [...deliveryVectors.map(it => written(it)), ...ofWebhooks, ...ofKeys, ...ofTimes]
  const vectors = await Promise.all(made)
  const content = {
    about: [
      'Deliveries, and what a receiver answers. Each vector is for a receiver that has handled nothing yet, ' +
        'at `time` (epoch seconds), whose',
      'issuer and audience are these and whose key set answers as `keySets` says under the vector’s `keySet`. ' +
        '`huge` means that set followed by',
      '256 KiB of spaces. `body` is UTF-8; `bodyBase64` stands in its place where the bytes are none. ' +
        '`verdict.code` is how the receiver',
      'kit calls the check that fails; of `verdict` only `status` and `handled` bind, and of a 5XX only that it is ' +
        'one (500 where the handler fails). `webhookIds`, where there are any,',
      'are the receiver’s own webhooks; without them it has not named any. `authorization` is that header; ' +
        'without it there is none.',
      'So many `spaces` follow the body, and `method` is there where it is not POST. `verdict.handled` is the ' +
        'event’s own id as the handler gets it,',
      'null where nothing reaches the handler. What is `advisable` the RFCs leave open. `sequences` are deliveries ' +
        'to one receiver, one after the',
      'other, with the right key set; `during` means while the one before is being handled (such as from within ' +
        'its handler), `handler` what it does then.',
    ].join(' '),
    issuer,
    audience,
    keySets: {
      published: { status: 200, body: { keys } },
      mixed: { status: 200, body: { keys: [null, 7, 'key', [], { kid }, { ...own, x: 'AA' }, ...keys], more: true } },
      rotated: { status: 200, body: { keys: [rotated] } },
      numbered: { status: 200, body: { keys: [{ ...own, kid: '1' }] } },
      otherKty: { status: 200, body: { keys: [{ ...own, kty: 'EC' }, rotated] } },
      otherCrv: { status: 200, body: { keys: [{ ...own, crv: 'ed25519' }, rotated] } },
      empty: { status: 200, body: { keys: [] } },
      unusable: { status: 200, body: { keys: [{ ...own, x: 'AA' }, { ...own, crv: 'X25519' }, null] } },
      unnamed: { status: 200, body: { keys: [{ ...own, kid: 1 }] } },
      page: { status: 200, body: '<html>' },
      list: { status: 200, body: [own] },
      away: { status: 503, body: '' },
      failing: { status: 500, body: { keys } },
      moved: { status: 302, body: { keys } },
      huge: { status: 200, body: { keys } },
    },
    vectors,
    sequences,
  }
  return `${JSON.stringify(content, null, 1)}\n`
}

if (import.meta.main) {
  const file = fileURLToPath(new URL('../docs/receivers/vectors.json', import.meta.url))
  mkdirSync(fileURLToPath(new URL('.', new URL('../docs/receivers/vectors.json', import.meta.url))), {
    recursive: true,
  })
  writeFileSync(file, await vectorsFile())
}
