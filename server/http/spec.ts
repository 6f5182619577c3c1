import { TOKEN_LIFETIME_SECONDS } from '../../shared/delivery-token.ts'
import { events, exampleIds } from '../../shared/events.ts'
import { version } from '../../shared/version.ts'
import { type EventType, eventTypes } from '../../shared/vocabulary.ts'
import { LONGEST_THROTTLE_MS, LONGEST_THROTTLED_MS } from '../delivery/outcome.ts'
import { bodySchemas, nameOf } from './spec-schemas.ts'

/** The headers of webhooks with `signing: standard`. */
const STANDARD = {
  WebhookId: {
    name: 'webhook-id',
    meaning: "the delivery's id, `eventId` in the body: the same for every attempt",
    schema: { type: 'string', format: 'uuid' },
    example: exampleIds.delivery,
  },
  WebhookTimestamp: {
    name: 'webhook-timestamp',
    meaning: 'when this attempt was signed, in seconds since 1970',
    schema: { type: 'integer' },
    example: 1_795_221_601,
  },
  WebhookSignature: {
    name: 'webhook-signature',
    meaning:
      '`v1,` and the base64 of the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}` under the webhook’s ' +
      'secret; several, separated by spaces, while a rotation is under way',
    schema: { type: 'string', pattern: '^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)*$' },
    example: 'v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=',
  },
}

const standardParameters = Object.fromEntries(
  Object.entries(STANDARD).map(([key, { meaning, ...header }]) => [
    key,
    {
      ...header,
      in: 'header',
      required: false,
      description: `Only for webhooks with \`signing: standard\` (Standard Webhooks 1.0.0): ${meaning}.`,
    },
  ]),
)

type Installation = { baseUrl: string; issuerUrl: string; retryScheduleMs: readonly number[] }

/** The description of the webhook API in OpenAPI 3.1.2, built from the sender's registry of events. */
export const webhookSpec = (installation: Installation) => ({
  openapi: '3.1.2',
  info: {
    title: 'Tidings webhooks',
    version,
    summary: 'Events that Tidings delivers to registered endpoints.',
    description: description(installation),
    contact: { name: 'The operators of this server', url: installation.baseUrl },
    license: { name: 'MIT', identifier: 'MIT' },
  },
  servers: [{ url: installation.baseUrl, description: 'The server that sends. Its public keys are published here.' }],
  tags: [{ name: 'Events', description: 'The requests that an endpoint receives, one entry for each type of event.' }],
  webhooks: Object.fromEntries(eventTypes.map(type => [type, { post: operation(type, installation) }])),
  components: {
    securitySchemes: { deliveryToken: deliveryToken(installation) },
    parameters: { ContentDigest: contentDigest, ...standardParameters },
    headers: { RetryAfter: retryAfter, Challenge: challenge },
    schemas: bodySchemas,
  },
})

const standardRows = Object.values(STANDARD)
  .map(({ name, meaning }) => `| \`${name}\` | ${meaning} |`)
  .join('\n')

const THROTTLE_H = LONGEST_THROTTLE_MS / 3_600_000

const description = (installation: Installation): string =>
  [whatArrives, whatToCheck, whatFollows].map(part => part(installation)).join('\n')

const whatArrives = ({ baseUrl, issuerUrl }: Installation) => `\
Tidings sends each event to your endpoint as a POST with a JSON body and a signed token (JWT) in the Authorization
header. Check the token, handle the event once, and answer in time. Later versions will add types of events and members
of payloads: acknowledge those that you do not know.

## What arrives

\`\`\`http
POST /hooks HTTP/1.1
Content-Type: application/json
Content-Digest: ${contentDigest.example}
Authorization: Bearer eyJhbGciOiJFZERTQSIsImtpZCI6…
User-Agent: Tidings/${version}

${JSON.stringify(exampleOf('project_report_quarterly_overdue'), null, 2)}
\`\`\`

The token is signed with a key from ${baseUrl}/.well-known/jwks.json. Its claims:

| Claim | Its value |
|---|---|
| \`iss\` | \`${issuerUrl}\` |
| \`aud\` | the endpoint's URL as registered |
| \`sub\` | the event's id: the same for all retries, redeliveries, recoveries and webhooks |
| \`jti\` | the delivery's id, \`eventId\` in the body: the same for every attempt |
| \`iat\`, \`exp\` | when the token was made, and ${TOKEN_LIFETIME_SECONDS} s later; every attempt has a fresh token |
| \`body_sha256\` | the SHA-256 of the body, in base64url |

A webhook with \`signing: standard\` also carries the three headers of Standard Webhooks 1.0.0. No other webhook does.

| Header | Its value |
|---|---|
${standardRows}

A library of Standard Webhooks, with the webhook's secret, replaces checks 1 to 7 of the token. Record \`webhook-id\`
as you would \`jti\`. ${baseUrl}/docs/receivers/standard-webhooks shows its lines in nine languages.
`

const whatToCheck = ({ baseUrl, issuerUrl }: Installation) => `\
## What to check

Check in this order, and answer 401 if a check fails.

1. The token's \`alg\` is \`EdDSA\`.
2. Its \`kid\` names an Ed25519 key at ${baseUrl}/.well-known/jwks.json, and that key verifies the signature.
3. \`iss\` is \`${issuerUrl}\`.
4. \`aud\` is the endpoint's URL as registered.
5. \`exp\` has not passed.
6. \`jti\` is the body's \`eventId\`, and \`body_sha256\` the SHA-256 of the body.
7. \`webhookId\` is one of yours.
8. \`jti\` was not handled before. Record it once the event is handled.
`

const whatFollows = ({ baseUrl, retryScheduleMs }: Installation) => `\
## What your answer does

| You answer | What follows |
|---|---|
| 2XX | Delivered. A ping at registration must be answered with exactly 200. |
| 429 with \`Retry-After\` | Sent again then, at most ${THROTTLE_H} h later. The whole webhook waits until then. |
| 429 without it | The webhook becomes inactive. \`tidings webhooks enable ID\` activates it again. |
| any other 4XX | Rejected. The event is not sent again. |
| 5XX, a redirect, no usable answer | Failed: ${again(retryScheduleMs)} |

An attempt takes at most 15 s, including the connection. Put longer work into your own queue. A delivery may arrive
twice: if your answer is lost, it is sent again with the same \`eventId\`.

An example sent on demand (\`sendExample\`, \`tidings trigger\`) is delivered like a real event. Its payload has the
same ids as the examples here, which no real object has: \`${exampleIds.projectReport}\` and so on.

${baseUrl}/docs#receivers has receivers to install or copy, in JavaScript, Python, Go, Java, PHP, Ruby and C#, and the
complete rules for any other language.
`

const again = (retryScheduleMs: readonly number[]): string =>
  retryScheduleMs.length === 0
    ? 'the event is dropped without a retry.'
    : `it is sent again after ${retryScheduleMs.map(ms => ms / 1000).join(', ')} s, and is then dropped.`

const deliveryToken = ({ issuerUrl }: Installation) => ({
  type: 'http',
  scheme: 'bearer',
  bearerFormat: 'JWT',
  description:
    `EdDSA (Ed25519). Verify with the key that the token's \`kid\` names. \`iss\` is ${issuerUrl}, ` +
    `\`aud\` the endpoint's URL as registered, and \`exp\` ${TOKEN_LIFETIME_SECONDS} s after \`iat\`. ` +
    "`jti` is the `eventId` of the body. `sub` is the event's own id, the same for all retries, redeliveries, " +
    'recoveries and webhooks. `body_sha256` is the SHA-256 of the body in base64url. Record a `jti` once its event ' +
    'is handled, and reject it after that.',
})

const operation = (type: EventType, installation: Installation) => ({
  operationId: type,
  tags: ['Events'],
  summary: events[type].summary,
  description: type === 'ping' ? PING : EVENT,
  security: [{ deliveryToken: [] }],
  parameters: ['ContentDigest', ...Object.keys(STANDARD)].map(name => ({
    $ref: `#/components/parameters/${name}`,
  })),
  requestBody: {
    required: true,
    content: {
      'application/json': {
        schema: { $ref: `#/components/schemas/${nameOf(type)}` },
        examples: { [type]: { summary: 'An example. No real object has its ids.', value: exampleOf(type) } },
      },
    },
  },
  responses: responses(type, installation),
})

const PING =
  'At registration, and when a webhook gets a new url or becomes active again, the answer must be exactly 200. After ' +
  'any other answer, including another 2XX, nothing is stored (`PING_FAILED`), and the ping is not sent again. A ' +
  'ping requested with `pingWebhook` is a delivery like any other. There is nothing to handle.'
const EVENT = 'Delivered at least once: every attempt has the same `eventId`, by which to recognise a repetition.'

const exampleOf = (type: EventType) => ({
  webhookId: exampleIds.webhook,
  eventId: exampleIds.delivery,
  eventType: type,
  eventTime: '2026-11-21T00:40:01.123+00:00',
  payload: events[type].example,
})

const responses = (type: EventType, { retryScheduleMs }: Installation) => ({
  '200': { description: type === 'ping' ? 'The endpoint can be registered.' : 'Delivered.' },
  '2XX': { description: type === 'ping' ? 'Delivered, but not registered.' : 'Delivered.' },
  '401': {
    description:
      'The token is expired or invalid, has another audience or issuer, or its `jti` was handled before. ' +
      'Not sent again. A retry refused with `error_description="replay"` counts as handled if an earlier ' +
      'attempt had no answer, or one from 501 to 599.',
    headers: { 'WWW-Authenticate': { $ref: '#/components/headers/Challenge' } },
  },
  '429': {
    description:
      `With Retry-After: sent again then, at most ${LONGEST_THROTTLE_MS / 3_600_000} h later. The whole webhook ` +
      `waits until then. Dropped after ${LONGEST_THROTTLED_MS / 3_600_000} h of 429. ` +
      'Without: the webhook becomes inactive.',
    headers: { 'Retry-After': { $ref: '#/components/headers/RetryAfter' } },
  },
  '4XX': { description: 'Rejected as invalid. Not sent again.' },
  '5XX': { description: `As for a redirect or no answer: ${again(retryScheduleMs)}` },
})

const retryAfter = { description: 'Seconds, or a date.', schema: { type: 'string' }, example: '30' }

const challenge = {
  description: 'What failed (RFC 6750).',
  schema: { type: 'string' },
  example: 'Bearer error="invalid_token", error_description="expiry"',
}

const contentDigest = {
  name: 'Content-Digest',
  in: 'header',
  required: true,
  description: 'The SHA-256 of the body (RFC 9530). The claim `body_sha256` of the token covers it.',
  schema: { type: 'string', pattern: '^sha-256=:[A-Za-z0-9+/]{43}=:$' },
  example: 'sha-256=:4REjxQ4yrqUVicfSKYNO/cF9zNj5ANbzgDZt3/h3Qxo=:',
}
