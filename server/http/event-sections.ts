import { eventTypes } from '../../shared/vocabulary.ts'
import { escaped } from './page-files.ts'
import { bodySchemas, nameOf } from './spec-schemas.ts'

/** What a section says of an event, from the description of its request. */
export interface DescribedEvent {
  post: {
    summary: string
    description: string
    requestBody: { content: { 'application/json': { examples: Record<string, { value: unknown }> } } }
  }
}

interface Schema {
  $ref?: string
  type?: string | string[]
  format?: string
  const?: unknown
  enum?: unknown[]
  anyOf?: Schema[]
  description?: string
  properties?: Record<string, Schema>
  items?: Schema
  required?: string[]
}

/** A section for each type of event: what it means, the members of its payload, and an example of its body. */
export const eventSections = (webhooks: Record<string, DescribedEvent>): string =>
  eventTypes
    .map(type => {
      const { summary, description, requestBody } = webhooks[type]!.post
      const { value } = requestBody.content['application/json'].examples[type]!
      return `<section class="event" id="event-${type}" aria-labelledby="title-${type}">
<h3 id="title-${type}"><code>${type}</code></h3>
<p>${escaped(summary)}</p>
${payloadTable(type)}
<details open><summary>Example of the body of <code>${type}</code></summary>
<pre><code>${escaped(JSON.stringify(value, null, 2))}</code></pre>
</details>
<p class="aside">${escaped(description).replaceAll(/`([^`]+)`/g, '<code>$1</code>')}</p>
</section>`
    })
    .join('\n')

const payloadTable = (type: string): string => {
  const rows = membersOf(bodySchemas[`${nameOf(type)}Payload`] as Schema)
  if (rows.length === 0) return '<p>Its payload is empty.</p>'
  return `<table>
<caption>Payload</caption>
<thead><tr><th scope="col">Member</th><th scope="col">Type</th><th scope="col">Meaning</th></tr></thead>
<tbody>
${rows.map(rowOf).join('\n')}
</tbody>
</table>`
}

/** A path breaks between its members, where it breaks. */
const rowOf = ([path, kind, meaning]: Member): string => {
  const name = escaped(path).replaceAll('.', '.<wbr>')
  return `<tr><th scope="row"><code>${name}</code></th><td>${escaped(kind)}</td><td>${escaped(meaning)}</td></tr>`
}

type Member = [path: string, kind: string, meaning: string]

/** Every member of an object that has a value itself, by its path. */
const membersOf = (given: Schema, before = ''): Member[] =>
  Object.entries(resolved(given).properties ?? {}).flatMap(([name, member]) => {
    const schema = resolved(member)
    const path = `${before}${name}`
    return schema.properties
      ? membersOf(schema, `${path}.`)
      : [[path, kindOf(schema), member.description ?? schema.description ?? '']]
  })

const resolved = (schema: Schema): Schema => {
  const name = schema.$ref?.split('/').at(-1)
  return name === undefined ? schema : (bodySchemas[name] as Schema)
}

const KINDS: Record<string, string> = { uuid: 'UUID', date: 'date (YYYY-MM-DD)', 'date-time': 'time (ISO 8601)' }

const kindOf = ({ type, format, enum: values, anyOf, const: only, items }: Schema): string => {
  if (values) return values.map(String).join(' or ')
  if (only !== undefined) return String(only)
  if (anyOf) return anyOf.map(each => kindOf(resolved(each))).join(' or ')
  if (items) return `list of ${kindOf(resolved(items))}`
  return (format && KINDS[format]) || (type === undefined ? 'any' : [type].flat().join(' or '))
}
