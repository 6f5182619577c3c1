import { z } from 'zod'
import { events } from '../../shared/events.ts'
import { type EventType, eventTypes } from '../../shared/vocabulary.ts'

// The schemas of deliveries, each with a name, by which code generators name their types.

/** `project_report_quarterly_submitted` is the schema `ProjectReportQuarterlySubmitted`. */
export const nameOf = (type: string): string =>
  type.replace(/(^|_)([a-z])/g, (_match, _before, letter) => letter.toUpperCase())

const bodyOf = (type: EventType) =>
  z
    .object({
      webhookId: z.uuid().describe('The id of the webhook.'),
      eventId: z.uuid().describe('Equals the `jti` of the token, and is the same for every attempt.'),
      eventType: z.literal(type),
      eventTime: z.iso.datetime({ offset: true }).describe('When it happened.'),
      payload: events[type].payload,
    })
    .describe(events[type].summary)

const named = z.registry<{ id: string }>()
for (const type of eventTypes) {
  const body = bodyOf(type)
  named.add(body, { id: nameOf(type) })
  named.add(body.shape.payload, { id: `${nameOf(type)}Payload` })
  for (const [member, schema] of Object.entries(body.shape.payload.shape)) {
    if (schema instanceof z.ZodObject) named.add(schema, { id: `${nameOf(type.split('_').at(-1)!)}${nameOf(member)}` })
  }
}

const refTo = (name: string) => `#/components/schemas/${name}`

const { schemas } = z.toJSONSchema(named, {
  uri: refTo,
  override: ({ jsonSchema }) => {
    // The format already says it.
    if (jsonSchema.format) delete jsonSchema.pattern
    if (jsonSchema.additionalProperties !== false) return
    // Receivers must accept members that a later version adds.
    delete jsonSchema.additionalProperties
    if (Object.keys(jsonSchema.properties!).length === 0) jsonSchema.additionalProperties = true
  },
})

/** Every schema by name; `Delivery` is the union of the bodies. */
export const bodySchemas: Record<string, object> = {
  Delivery: {
    description: 'The body of any delivery; `eventType` says which. Later versions will add types: acknowledge them.',
    oneOf: eventTypes.map(type => ({ $ref: refTo(nameOf(type)) })),
    discriminator: {
      propertyName: 'eventType',
      mapping: Object.fromEntries(eventTypes.map(type => [type, refTo(nameOf(type))])),
    },
  },
  ...Object.fromEntries(
    Object.entries(schemas).map(([name, { $schema: _schema, $id: _id, ...schema }]) => [name, schema]),
  ),
}
