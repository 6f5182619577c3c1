import { z } from 'zod'
import { TOKEN_LIFETIME_SECONDS } from '../../shared/delivery-token.ts'
import { events } from '../../shared/events.ts'
import { version } from '../../shared/version.ts'
import { type EventType, eventTypes } from '../../shared/vocabulary.ts'

/**
 * The description of the webhook API in OpenAPI 3.1.2, made from the registry of events that the sender itself uses.
 */
export const webhookSpec = ({
  baseUrl,
  issuerUrl,
  retryScheduleMs,
}: {
  baseUrl: string
  issuerUrl: string
  retryScheduleMs: readonly number[]
}) => ({
  openapi: '3.1.2',
  info: {
    title: 'Tidings webhooks',
    version,
    description:
      'Events that Tidings delivers to registered endpoints. Each carries a JWT, signed with a key of ' +
      `${baseUrl}/.well-known/jwks.json. What a receiver has to do is in the package's docs/receivers/, with ` +
      'receivers in JavaScript (@tidings/receiver), Python, Go, Java, PHP, Ruby and C#.',
  },
  webhooks: Object.fromEntries(eventTypes.map(type => [type, { post: operation(type, retryScheduleMs) }])),
  components: {
    securitySchemes: {
      deliveryToken: {
        type: 'http',
        scheme: 'bearer',
        bearerFormat: 'JWT',
        description:
          `EdDSA (Ed25519). Verify with the key whose \`kid\` is the token's; \`iss\` is ${issuerUrl}, ` +
          `\`aud\` the endpoint's URL as registered, \`exp\` ${TOKEN_LIFETIME_SECONDS} s after \`iat\`, ` +
          "`jti` the `eventId` of the body, `sub` the event's own id, the same over retries, redeliveries, " +
          'recoveries ' +
          'and webhooks, and `body_sha256` the SHA-256 of the body in base64url. Record a `jti` once its event is ' +
          'handled, and reject it after that.',
      },
    },
  },
})

const operation = (type: EventType, retryScheduleMs: readonly number[]) => ({
  operationId: type,
  summary: events[type].summary,
  security: [{ deliveryToken: [] }],
  parameters: [contentDigest],
  requestBody: { required: true, content: { 'application/json': { schema: bodySchema(type) } } },
  responses: {
    '200': { description: type === 'ping' ? 'The endpoint is registered.' : 'Delivered.' },
    '2XX': { description: type === 'ping' ? 'Delivered; registration asks for exactly 200.' : 'Delivered.' },
    '401': {
      description:
        'The token is expired, invalid, of another audience or issuer, or its `jti` was handled before. ' +
        'No retry. A retry that is refused with `error_description="replay"` in WWW-Authenticate counts as ' +
        'handled.',
    },
    '429': {
      description: 'With Retry-After: again then. Without: the webhook becomes inactive.',
      headers: {
        'Retry-After': { description: 'Seconds, or a date.', schema: { type: 'string' } },
      },
    },
    '4XX': { description: 'Rejected as invalid. No retry.' },
    '5XX': { description: `Again after ${retryScheduleMs.map(ms => ms / 1000).join(', ')} s, then dropped.` },
  },
})

const contentDigest = {
  name: 'Content-Digest',
  in: 'header',
  required: true,
  description: 'The SHA-256 of the body (RFC 9530), which the token covers by its claim `body_sha256`.',
  schema: { type: 'string', pattern: '^sha-256=:[A-Za-z0-9+/]{43}=:$' },
}

const bodySchema = (type: EventType) => {
  const { $schema: _, ...schema } = z.toJSONSchema(
    z.object({
      webhookId: z.uuid(),
      eventId: z.uuid().describe('Equals the `jti` of the token, at every attempt.'),
      eventType: z.literal(type),
      eventTime: z.iso.datetime({ offset: true }).describe('When it happened.'),
      payload: events[type].payload,
    }),
    // A format says it already.
    {
      override: ({ jsonSchema }) => {
        if (jsonSchema.format) delete jsonSchema.pattern
      },
    },
  )
  return schema
}
