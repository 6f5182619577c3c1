import { Argument } from '@commander-js/extra-typings'
import { usageError } from '../errors.ts'
import { list, listCommand } from '../listing.ts'
import { collect, examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { Session } from '../session.ts'

/** The API's lists, and the fields shown of each where none are asked for. */
const RESOURCES: Record<string, string[]> = {
  organisations: ['id', 'name'],
  projects: ['id', 'name', 'organisation.id', 'organisation.name'],
  users: ['id', 'name'],
  projectReports: ['id', 'projectId', 'quarter', 'dueDate', 'status'],
  webhooks: ['id', 'url', 'status', 'lastDeliveryAt'],
  events: ['id', 'type', 'organisationId', 'projectId', 'time'],
  deliveries: ['id', 'webhookId', 'eventType', 'status', 'attemptCount', 'nextAttemptAt', 'createdAt'],
  accessTokens: ['id', 'name', 'permissions', 'expiresAt', 'revokedAt', 'lastUsedAt'],
}

type Row = { id: string } & Record<string, unknown>

export const queryCommand = () =>
  listCommand()
    .name('query')
    .description(
      'Queries any resource with a Mango selector, as CouchDB has them: a field and what it must be, or operators on it.',
    )
    .addArgument(new Argument('<resource>', 'what to look for').choices(Object.keys(RESOURCES)))
    .argument('[selector]', 'a JSON object; without one, everything visible matches')
    .option('--fields <names>', 'fields to show (comma-separated); dots lead into related objects', collect)
    .addHelpText(
      'after',
      examples(
        ['Deliveries that were refused', `tidings query deliveries '{"status":"rejected"}'`],
        ['By name, in any case', `tidings query organisations '{"name":{"$regex":"(?i)acme"}}'`],
        [
          'Chosen fields, the newest five',
          'tidings query deliveries --fields id,status,webhook.url --sort=-createdAt --limit 5',
        ],
      ),
    )
    .action(async (resource, selector, options, command) => {
      const session = new Session(command)
      if (selector !== undefined && options.selector !== undefined) {
        throw usageError('The selector is given twice.', 'Give it as the second argument or with --selector.')
      }
      const fields = options.fields ?? RESOURCES[resource]!
      await list<Row>(
        session,
        { ...options, selector: selector ?? options.selector },
        {
          resource,
          noun: ['row', 'rows'],
          // The id is what the next page and --output id need, asked for or not.
          fields: selection(['id', ...fields]),
          view: {
            columns: fields.map((field, index) => ({
              title: field,
              // Cut ids and times are of no use; what was asked for by name is never left out.
              ...(!/(^id|Id|At|time)$/.test(field) && { shrinks: 'end' as const }),
              ...(!options.fields && index > 1 && { optional: true as const }),
              cell: row => cellText(valueAt(row, field)),
            })),
            empty: 'Nothing matches.',
          },
        },
      )
    })

type Tree = { [field: string]: Tree }

/** `['id', 'webhook.url', 'webhook.status']` as a GraphQL selection: `id webhook { url status }`. */
export const selection = (fields: string[]): string => {
  const tree: Tree = Object.create(null)
  for (const field of fields) {
    let branch = tree
    for (const name of field.split('.')) {
      if (!/^[_A-Za-z]\w*$/.test(name))
        throw usageError(`${JSON.stringify(field)} is no field.`, 'Such as: --fields id,status,webhook.url')
      branch[name] ??= Object.create(null) as Tree
      branch = branch[name]
    }
  }
  return write(tree)
}

const write = (tree: Tree): string =>
  Object.entries(tree)
    .map(([name, below]) => (Object.keys(below).length === 0 ? name : `${name} { ${write(below)} }`))
    .join(' ')

const valueAt = (row: unknown, field: string): unknown => {
  let value = row
  for (const name of field.split('.')) {
    if (Array.isArray(value)) return value.map(each => valueAt(each, field.slice(field.indexOf(name))))
    if (typeof value !== 'object' || value === null) return value
    value = (value as Record<string, unknown>)[name]
  }
  return value
}
