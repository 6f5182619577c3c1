// node scripts/receiver-vectors.ts: writes docs/receivers/vectors.json, deliveries with the answers that a receiver
// must give. A test says when to run it again.
import { createHash } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import {
  audience,
  body,
  broken,
  good,
  iat,
  issuer,
  jti,
  keys,
  kid,
  now,
  numberedToken,
  retryToken,
  sound,
  tokenFor,
  webhookId,
} from '../test/receiver/tokens.ts'

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

const vector = (name: string, code: string, more: Partial<Vector> = {}): Vector => {
  const content = more.bodyBase64 === undefined ? { body: more.body ?? body } : {}
  const defaults = { authorization: `Bearer ${good}`, ...content, keySet: 'published', time }
  const given = { ...defaults, ...more }
  const isAdvisable = ADVISABLE.test(name)
  return { name, ...given, ...(isAdvisable && { advisable: true }), verdict: verdictOf(code, given) }
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
/**
 * Libraries that keep to RFC 7515, 7519 and 8259 may differ: duplicate names, `typ`, byte order marks, padding,
 * lengths, numbers that are none, extensions that a library knows, and claims that are optional and of a wrong type.
 */
const ADVISABLE = new RegExp(
  [
    /(alg|aud|jti|a name) twice|of typ |as typ|b64: false|byte order mark|UTF-16|padd|a stray |stray bits/,
    /of a length that no token|of 16 KiB|NaN|before the beginning|before null|as sub|true as critical extension/,
  ]
    .map(({ source }) => source)
    .join('|'),
)

const verdictOf = (code: string, given: { authorization: string | null; body?: string }): Verdict => {
  const isHandled = code === 'ok' && (given.body === undefined || JSON.parse(given.body).eventType !== 'ping')
  return { status: STATUS[code] ?? 401, code, handled: isHandled ? idIn(given.authorization!) : null }
}

/** The event's own id: the token's `sub`, or its `jti` where there is none. */
const idIn = (authorization: string): string => {
  const claims = JSON.parse(Buffer.from(authorization.split('.')[1]!, 'base64url').toString())
  return typeof claims.sub === 'string' && claims.sub !== '' ? claims.sub : claims.jti
}

/** A delivery with another body and a matching signature. */
const signed = (name: string, code: string, content: string | Uint8Array, claimed: object = {}): Vector => {
  const given =
    typeof content === 'string' ? { body: content } : { bodyBase64: Buffer.from(content).toString('base64') }
  return vector(name, code, { ...given, authorization: `Bearer ${tokenFor(content, claimed)}` })
}
const without = (name: string): string => json({ ...fields, [name]: undefined })

const ofTokens = [
  ...sound.map(([what, token]) => vector(`a token ${what}`, 'ok', { authorization: `Bearer ${token}` })),
  ...broken.map(([what, token, check]) => vector(`a token ${what}`, check, { authorization: `Bearer ${token}` })),
]

const ofHeaders = [
  vector('the scheme in lower case', 'ok', { authorization: `bearer ${good}` }),
  vector('the scheme in capitals', 'ok', { authorization: `BEARER ${good}` }),
  vector('two spaces after the scheme', 'ok', { authorization: `Bearer  ${good}` }),
  vector('no Authorization header', 'token_missing', { authorization: null }),
  vector('an empty Authorization header', 'token_missing', { authorization: '' }),
  vector('a scheme without a token', 'token_missing', { authorization: 'Bearer' }),
  vector('a scheme that is another', 'token_missing', { authorization: `Basic ${good}` }),
  vector('a scheme that begins as ours', 'token_missing', { authorization: `Bearers ${good}` }),
  vector('a scheme with a colon after it', 'token_missing', { authorization: `Bearer: ${good}` }),
  vector('a scheme with a tab after it', 'token_missing', { authorization: `Bearer\t${good}` }),
  vector('a scheme with nothing after it but the token', 'token_missing', { authorization: `Bearer${good}` }),
  vector('a token with a space after it', 'ok', { authorization: `Bearer ${good} ` }),
  vector('a token without a scheme', 'token_missing', { authorization: good }),
  vector('the scheme after another', 'token_missing', { authorization: `Basic eDp4, Bearer ${good}` }),
  vector('the scheme after a word', 'token_missing', { authorization: `Token Bearer ${good}` }),
  vector('a method that is another', 'method', { method: 'PUT' }),
]

const digest = createHash('sha256').update(body).digest('base64url')
/** So many spaces make the body one of 1 MiB. */
const MIB = 1024 * 1024 - Buffer.byteLength(body)

const ofBodies = [
  vector('a body that was exchanged', 'jti', { body: json({ ...fields, eventId: 'other' }) }),
  vector('a body of which one character was changed', 'body_digest', { body: body.replace('2026', '2027') }),
  vector('a body with a space after it', 'body_digest', { body: `${body} ` }),
  vector('a body with a member more', 'body_digest', { body: json({ ...fields, more: true }) }),
  vector('an empty body', 'jti', { body: '' }),
  signed('a body that is a list', 'jti', json([fields])),
  signed('a body that is no JSON', 'jti', `${body}}`),
  signed('a body with a name twice', 'ok', `{"eventTime":"",${body.slice(1)}`),
  signed('a body with NaN in it', 'jti', `${body.slice(0, -1)},"x":NaN}`),
  signed('a body that begins with a byte order mark', 'jti', `\uFEFF${body}`),
  signed(
    'a body that is no UTF-8',
    'jti',
    Buffer.concat([Buffer.from(body.slice(0, -1)), Buffer.from(',"x":"\xff"}', 'latin1')]),
  ),
  signed('a token without body_sha256, as older servers make it', 'ok', body, { body_sha256: undefined }),
  signed('a body_sha256 that is a number', 'body_digest', body, { body_sha256: 1 }),
  signed('a body_sha256 that is null', 'body_digest', body, { body_sha256: null }),
  signed('a body_sha256 of another body', 'body_digest', body, { body_sha256: 'A'.repeat(43) }),
  signed('a body_sha256 that is empty', 'body_digest', body, { body_sha256: '' }),
  signed('a body_sha256 that is cut', 'body_digest', body, { body_sha256: digest.slice(0, -1) }),
  signed('a body_sha256 of one character', 'body_digest', body, { body_sha256: digest.slice(0, 1) }),
  signed('a body_sha256 with = after it', 'body_digest', body, { body_sha256: `${digest}=` }),
  signed('a body_sha256 with a space after it', 'body_digest', body, { body_sha256: `${digest} ` }),
  signed('a body_sha256 in a list', 'body_digest', body, { body_sha256: [digest] }),
  signed('a body_sha256 of half a character', 'body_digest', body, { body_sha256: '\ud800' }),
  signed('a body_sha256 in capitals', 'body_digest', body, { body_sha256: digest.toUpperCase() }),
  signed('a body_sha256 in hexadecimal', 'body_digest', body, {
    body_sha256: Buffer.from(digest, 'base64url').toString('hex'),
  }),
  signed('a token without sub, as older servers make it', 'ok', body, { sub: undefined }),
  signed('a token with an empty sub', 'ok', body, { sub: '' }),
  signed('an eventId that is the jti as a number', 'jti', json({ ...fields, eventId: 7 }), { jti: '7' }),
  signed('neither jti nor eventId', 'jti', without('eventId'), { jti: undefined }),
  ...[7, '', null, [jti]].map(it =>
    signed(`${json(it)} as jti and eventId`, 'jti', json({ ...fields, eventId: it }), { jti: it }),
  ),
  vector('a body of 1 MiB', 'ok', { authorization: `Bearer ${tokenFor(`${body}${' '.repeat(MIB)}`)}`, spaces: MIB }),
  vector('a body of more than 1 MiB', 'body_too_large', {
    authorization: `Bearer ${tokenFor(`${body}${' '.repeat(MIB + 1)}`)}`,
    spaces: MIB + 1,
  }),
  ...['webhookId', 'eventType', 'eventTime', 'payload'].map(name =>
    signed(`a body without ${name}`, 'body', without(name)),
  ),
  signed('a body without eventId', 'jti', without('eventId')),
  signed('a body whose payload is a list', 'body', json({ ...fields, payload: [] })),
  signed('a body whose eventType is a number', 'body', json({ ...fields, eventType: 7 })),
  signed(
    'an event of a type that came later',
    'ok',
    json({ ...fields, eventType: 'project_archived', payload: { x: 1 } }),
  ),
  signed('an event with more in its payload', 'ok', json({ ...fields, payload: { ...fields.payload, more: [1] } })),
  signed(
    'an event whose payload has a member of another type',
    'ok',
    json({ ...fields, payload: { accessTokenId: 7 } }),
  ),
  signed('a ping', 'ok', json({ ...fields, eventType: 'ping', payload: {} })),
]

const ofWebhooks = [
  vector('of one’s own webhook', 'ok', { webhookIds: [webhookId] }),
  vector('of one of one’s own webhooks', 'ok', { webhookIds: ['other', webhookId] }),
  vector('of somebody else’s webhook', 'webhook', { webhookIds: ['other'] }),
  vector('of a webhook whose id begins as one’s own', 'webhook', { webhookIds: [webhookId.slice(0, -1)] }),
  vector('of a webhook whose id is one’s own in capitals', 'webhook', { webhookIds: [webhookId.toUpperCase()] }),
  vector('of a webhook whose id one’s own begins with', 'webhook', { webhookIds: [`${webhookId}0`] }),
  ...[[webhookId], { id: webhookId }, null, '', 7].map(it => ({
    ...signed(`of a webhook whose id is ${json(it)}`, 'webhook', json({ ...fields, webhookId: it })),
    webhookIds: [webhookId],
  })),
  { ...signed('of no webhook', 'webhook', without('webhookId')), webhookIds: [webhookId] },
  {
    ...signed('of a ping of somebody else’s webhook', 'webhook', json({ ...fields, eventType: 'ping', payload: {} })),
    webhookIds: ['other'],
  },
]

const ofKeys = [
  vector('a key set with other kinds of things in it', 'ok', { keySet: 'mixed' }),
  vector('a key set in which the kid is no more', 'key', { keySet: 'rotated' }),
  vector('a key set in which the kid is a text, and a number in the token', 'key', {
    keySet: 'numbered',
    authorization: `Bearer ${numberedToken}`,
  }),
  vector('a key set in which the key is of another kty', 'key', { keySet: 'otherKty' }),
  vector('a key set in which the key is on another curve', 'key', { keySet: 'otherCrv' }),
  vector('a key set without keys', 'keys_unavailable', { keySet: 'empty' }),
  vector('a key set whose keys are none', 'keys_unavailable', { keySet: 'unusable' }),
  vector('a key set whose key has a number for a name', 'keys_unavailable', { keySet: 'unnamed' }),
  vector('a key set that is a page', 'keys_unavailable', { keySet: 'page' }),
  vector('a key set that is a list', 'keys_unavailable', { keySet: 'list' }),
  vector('a key set that is away', 'keys_unavailable', { keySet: 'away' }),
  vector('a key set with status 500 and the right keys', 'keys_unavailable', { keySet: 'failing' }),
  vector('a key set that has moved', 'keys_unavailable', { keySet: 'moved' }),
  vector('a key set of more than 256 KiB', 'keys_unavailable', { keySet: 'huge' }),
]

const ofTimes = [
  vector('the last second of a token', 'ok', { time: iat + 299 }),
  vector('the second in which a token expires', 'expiry', { time: iat + 300 }),
  vector('a token an hour old', 'expiry', { time: iat + 3600 }),
  vector('a clock that is 60 s behind', 'ok', { time: iat - 60 }),
  vector('a clock that is 61 s behind', 'issued_at', { time: iat - 61 }),
]

type Step = Sequence['steps'][number]
const step = (code: string, more: Partial<Step> = {}): Step => {
  const given = { authorization: `Bearer ${good}`, body, time, ...more }
  const isReached = code === 'ok' || code === 'handler_failed'
  const handled = isReached ? verdictOf('ok', given).handled : null
  return { ...given, verdict: { status: STATUS[code] ?? 401, code, handled } }
}
const pinged = json({ ...fields, eventType: 'ping', payload: {} })
const retry = { authorization: `Bearer ${retryToken(5)}`, time: time + 5 }
const redelivered = json({ ...fields, eventId: 'another delivery' })
const redelivery = { body: redelivered, authorization: `Bearer ${tokenFor(redelivered, { jti: 'another delivery' })}` }
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
      step(nth === 0 ? 'ok' : 'replay', { body: it, authorization: `Bearer ${tokenFor(it)}` }),
    ),
  },
]

const [own] = keys
const rotated = { ...own, kid: 'another' }

/** The text of docs/receivers/vectors.json. */
export const vectorsFile = (): string => {
  const vectors = [...ofTokens, ...ofHeaders, ...ofBodies, ...ofWebhooks, ...ofKeys, ...ofTimes]
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
  writeFileSync(file, vectorsFile())
}
