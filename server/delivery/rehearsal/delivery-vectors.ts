import { digestOf, type Mint } from './mint.ts'
import { brokenTokens, soundTokens } from './token-vectors.ts'

// Deliveries, most of them broken in one way each, whatever receiver they are for. docs/receivers/vectors.json is
// written from them, and a rehearsal sends those that can be sent.

/** What a vector's request has that is not as usual: POST, the right token, and the mint's body. */
export interface Changed {
  method?: string
  authorization?: string | null
  body?: string
  /** In place of `body` where the bytes are no text. */
  bodyBase64?: string
  /** The number of spaces that come after the body. */
  spaces?: number
}

export interface DeliveryVector {
  name: string
  /** The check that fails, or `ok`. */
  code: string
  /** Libraries that keep to the RFCs may differ. */
  isAdvisable: boolean
  make: (mint: Mint) => Changed | Promise<Changed>
}

/**
 * Libraries that keep to RFC 7515, 7519 and 8259 may differ: duplicate names, `typ`, byte order marks, padding,
 * lengths, numbers that are none, extensions that a library knows, claims that are optional and of a wrong type, and
 * clocks that differ.
 */
const ADVISABLE = new RegExp(
  [
    /(alg|aud|jti|a name) twice|of typ |as typ|b64: false|byte order mark|UTF-16|padd|a stray |stray bits/,
    /of a length that no token|of 16 KiB|NaN|claims have .* in them|before the beginning/,
    /before null|as sub|true as critical extension/,
    /not valid for .* minute yet/,
  ]
    .map(({ source }) => source)
    .join('|'),
)

const json = JSON.stringify
export const vector = (name: string, code: string, make: DeliveryVector['make']): DeliveryVector => ({
  name,
  code,
  isAdvisable: ADVISABLE.test(name),
  make,
})

/** A delivery with another body and a matching token. */
const signed = (
  name: string,
  code: string,
  bodyOf: (mint: Mint) => string | Uint8Array,
  claimed: (mint: Mint) => object = () => ({}),
): DeliveryVector =>
  vector(name, code, mint => {
    const body = bodyOf(mint)
    const authorization = `Bearer ${mint.tokenFor(body, claimed(mint))}`
    return typeof body === 'string'
      ? { body, authorization }
      : { bodyBase64: Buffer.from(body).toString('base64'), authorization }
  })
const own = (mint: Mint): string => mint.body
const fieldsWith =
  (changed: object) =>
  ({ fields }: Mint): string =>
    json({ ...fields, ...changed })
export const without = (name: string) => fieldsWith({ [name]: undefined })

const ofTokens = [...soundTokens.map(([what, make]) => [what, make, 'ok'] as const), ...brokenTokens].map(
  ([what, make, code]) =>
    vector(`a token ${what}`, code, async mint => ({ authorization: `Bearer ${await make(mint)}` })),
)

const header = (name: string, code: string, authorization: (good: string) => string | null): DeliveryVector =>
  vector(name, code, ({ good }) => ({ authorization: authorization(good) }))

const ofHeaders = [
  header('the scheme in lower case', 'ok', good => `bearer ${good}`),
  header('the scheme in capitals', 'ok', good => `BEARER ${good}`),
  header('two spaces after the scheme', 'ok', good => `Bearer  ${good}`),
  header('no Authorization header', 'token_missing', () => null),
  header('an empty Authorization header', 'token_missing', () => ''),
  header('a scheme without a token', 'token_missing', () => 'Bearer'),
  header('a scheme that is another', 'token_missing', good => `Basic ${good}`),
  header('a scheme that begins as ours', 'token_missing', good => `Bearers ${good}`),
  header('a scheme with a colon after it', 'token_missing', good => `Bearer: ${good}`),
  header('a scheme with a tab after it', 'token_missing', good => `Bearer\t${good}`),
  header('a scheme with nothing after it but the token', 'token_missing', good => `Bearer${good}`),
  header('a token with a space after it', 'ok', good => `Bearer ${good} `),
  header('a token without a scheme', 'token_missing', good => good),
  header('the scheme after another', 'token_missing', good => `Basic eDp4, Bearer ${good}`),
  header('the scheme after a word', 'token_missing', good => `Token Bearer ${good}`),
  vector('a method that is another', 'method', () => ({ method: 'PUT' })),
]

/** A token whose claim `body_sha256` is another. */
const claiming = (what: string, digest: (right: string) => unknown): DeliveryVector =>
  signed(`a body_sha256 ${what}`, 'body_digest', own, ({ body }) => ({ body_sha256: digest(digestOf(body)) }))

/** A body of one MiB, and as much longer. */
const ofLength =
  (more: number) =>
  (mint: Mint): Changed => {
    const spaces = 1024 * 1024 - Buffer.byteLength(mint.body) + more
    return { authorization: `Bearer ${mint.tokenFor(mint.body + ' '.repeat(spaces))}`, spaces }
  }

const ofDigests = [
  claiming('that is a number', () => 1),
  claiming('that is null', () => null),
  claiming('of another body', () => 'A'.repeat(43)),
  claiming('that is empty', () => ''),
  claiming('that is cut', right => right.slice(0, -1)),
  claiming('of one character', right => right.slice(0, 1)),
  claiming('with = after it', right => `${right}=`),
  claiming('with a space after it', right => `${right} `),
  claiming('in a list', right => [right]),
  claiming('of half a character', () => '\ud800'),
  claiming('in capitals', right => right.toUpperCase()),
  claiming('in hexadecimal', right => Buffer.from(right, 'base64url').toString('hex')),
]

const ofBodies = [
  vector('a body that was exchanged', 'jti', mint => ({ body: fieldsWith({ eventId: 'other' })(mint) })),
  vector('a body of which one character was changed', 'body_digest', ({ body }) => ({
    body: body.replace(/(?<="eventTime":")\d/, digit => `${9 - Number(digit)}`),
  })),
  vector('a body with a space after it', 'body_digest', ({ body }) => ({ body: `${body} ` })),
  vector('a body with a member more', 'body_digest', mint => ({ body: fieldsWith({ more: true })(mint) })),
  vector('an empty body', 'jti', () => ({ body: '' })),
  signed('a body that is a list', 'jti', ({ fields }) => json([fields])),
  signed('a body that is no JSON', 'jti', ({ body }) => `${body}}`),
  signed('a body with a name twice', 'ok', ({ body }) => `{"eventTime":"",${body.slice(1)}`),
  signed('a body with characters written as escapes', 'ok', ({ body }) =>
    `${body.slice(0, -1)},"x":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00"}`.replace(
      '"eventId":',
      '"event\\u0049d":',
    ),
  ),
  signed('a body with NaN in it', 'jti', ({ body }) => `${body.slice(0, -1)},"x":NaN}`),
  signed('a body that begins with a byte order mark', 'jti', ({ body }) => `\uFEFF${body}`),
  signed('a body that is no UTF-8', 'jti', ({ body }) =>
    Buffer.concat([Buffer.from(body.slice(0, -1)), Buffer.from(',"x":"\xff"}', 'latin1')]),
  ),
  signed('a token without body_sha256, as older servers make it', 'ok', own, () => ({ body_sha256: undefined })),
  ...ofDigests,
  signed('a token without sub, as older servers make it', 'ok', own, () => ({ sub: undefined })),
  signed('a token with an empty sub', 'ok', own, () => ({ sub: '' })),
  signed('an eventId that is the jti as a number', 'jti', fieldsWith({ eventId: 7 }), () => ({ jti: '7' })),
  signed('neither jti nor eventId', 'jti', without('eventId'), () => ({ jti: undefined })),
  ...[7, '', null].map(it =>
    signed(`${json(it)} as jti and eventId`, 'jti', fieldsWith({ eventId: it }), () => ({ jti: it })),
  ),
  signed(
    'a list of the jti as jti and eventId',
    'jti',
    mint => fieldsWith({ eventId: [mint.jti] })(mint),
    ({ jti }) => ({
      jti: [jti],
    }),
  ),
  vector('a body of 1 MiB', 'ok', ofLength(0)),
  vector('a body of more than 1 MiB', 'body_too_large', ofLength(1)),
  ...['webhookId', 'eventType', 'eventTime', 'payload'].map(name =>
    signed(`a body without ${name}`, 'body', without(name)),
  ),
  signed('a body without eventId', 'jti', without('eventId')),
  signed('a body whose payload is a list', 'body', fieldsWith({ payload: [] })),
  signed('a body whose eventType is a number', 'body', fieldsWith({ eventType: 7 })),
  signed('an event of a type that came later', 'ok', fieldsWith({ eventType: 'project_archived', payload: { x: 1 } })),
  signed('an event with more in its payload', 'ok', mint => {
    const { payload } = mint.fields as { payload: object }
    return fieldsWith({ payload: { ...payload, more: [1] } })(mint)
  }),
  signed('an event whose payload has a member of another type', 'ok', fieldsWith({ payload: { accessTokenId: 7 } })),
  signed('a ping', 'ok', fieldsWith({ eventType: 'ping', payload: {} })),
]

export const deliveryVectors: readonly DeliveryVector[] = [...ofTokens, ...ofHeaders, ...ofBodies]
