// node scripts/receiver-payloads.ts: writes receiver/payloads.ts from the registry of events, so that the receiver kit
// has types and shapes without the library that the registry uses. A test says when to run it again.
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { z } from 'zod'
import { events } from '../shared/events.ts'

type Schema = {
  type?: string | string[]
  properties?: Record<string, Schema>
  required?: string[]
  items?: Schema
  anyOf?: Schema[]
  enum?: unknown[]
  const?: unknown
}

/** The part of a schema that a receiver checks a payload against: the members and their types. */
const shapeOf = ({ type, properties, required, anyOf }: Schema): Schema => ({
  ...(Array.isArray(type) ? { anyOf: type.map(each => ({ type: each })) } : type && { type }),
  ...(properties && {
    properties: Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, shapeOf(schema)])),
    required: required ?? [],
  }),
  ...(anyOf && { anyOf: anyOf.map(shapeOf) }),
})

const typeOf = (schema: Schema): string => {
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(' | ')
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' | ')
  if (schema.items) return `(${typeOf(schema.items)})[]`
  if (schema.properties) {
    const members = Object.entries(schema.properties).map(
      ([name, member]) => `${name}${schema.required?.includes(name) ? '' : '?'}: ${typeOf(member)}`,
    )
    return members.length === 0 ? 'Record<string, never>' : `{ ${members.join('; ')} }`
  }
  if (Array.isArray(schema.type)) return schema.type.join(' | ')
  return schema.type === 'integer' ? 'number' : (schema.type ?? 'unknown')
}

/** The text of receiver/payloads.ts. */
export const payloadsModule = (): string => {
  const schemas = Object.entries(events).map(([type, { summary, payload }]) => {
    return { type, summary, schema: z.toJSONSchema(payload) as Schema }
  })
  const types = schemas.map(({ type, summary, schema }) => `  /** ${summary} */\n  ${type}: ${typeOf(schema)}`)
  const shapes = schemas.map(({ type, schema }) => `  ${type}: ${JSON.stringify(shapeOf(schema))},`)
  return `// biome-ignore-all format: written by a script
// Written by scripts/receiver-payloads.ts from shared/events.ts.

/** What the body of each type of event carries as its payload. */
export interface Payloads {
${types.join('\n')}
}

/** The part of JSON Schema that the payloads need. */
export interface Shape {
  type?: string
  properties?: Record<string, Shape>
  required?: readonly string[]
  anyOf?: readonly Shape[]
}

export const payloadShapes: Record<keyof Payloads, Shape> = {
${shapes.join('\n')}
}
`
}

if (import.meta.main)
  writeFileSync(fileURLToPath(new URL('../receiver/payloads.ts', import.meta.url)), payloadsModule())
