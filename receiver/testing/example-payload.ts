import { type Payloads, payloadShapes, type Shape } from '../payloads.ts'

/** An example payload of an event type, always the same. */
export const examplePayload = <Type extends keyof Payloads>(type: Type): Payloads[Type] =>
  example(payloadShapes[type], '') as Payloads[Type]

const example = ({ type, properties, anyOf }: Shape, name: string): unknown => {
  if (anyOf) return example(anyOf[0]!, name)
  if (properties)
    return Object.fromEntries(Object.entries(properties).map(([key, shape]) => [key, example(shape, key)]))
  if (type === 'string') return textOf(name)
  return type === 'boolean' ? true : type === 'null' ? null : 1
}

const textOf = (name: string): string => {
  if (/(^id|Id)$/.test(name)) return '0198a111-1111-7000-8000-000000000001'
  if (/quarter/i.test(name)) return '2026-3'
  if (/Date$/.test(name)) return '2026-11-21'
  if (/(At|Time)$/.test(name)) return '2026-11-21T00:40:01.123+00:00'
  return /url$/i.test(name) ? 'https://receiver.test/hooks' : 'Ada Okafor'
}
