import { Argument } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { collect, examples } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { count } from '../output/time.ts'
import { wordsOf } from '../output/words.ts'
import type { Resource } from '../resources/ids.ts'
import type { ListOptions } from '../resources/list-options.ts'
import { list, listCommand, mangoQuery, resolvePlace } from '../resources/listing.ts'

/** The API's lists with their default fields; on a narrow terminal the last ones are left out. */
const RESOURCES: Record<Resource, string[]> = {
  organisations: ['id', 'name'],
  projects: ['id', 'name', 'organisation.name', 'organisation.id'],
  users: ['id', 'name'],
  projectReports: ['id', 'quarter', 'status', 'dueDate', 'projectId'],
  webhooks: ['id', 'url', 'status', 'lastDeliveryAt'],
  events: ['id', 'type', 'time', 'projectId', 'organisationId'],
  deliveries: ['id', 'status', 'eventType', 'createdAt', 'attemptCount', 'nextAttemptAt', 'webhookId'],
  auditLog: ['id', 'time', 'operation', 'accessToken.name', 'actor', 'requestId'],
  accessTokens: ['id', 'name', 'permissions', 'expiresAt', 'revokedAt', 'lastUsedAt'],
}

type AnyResource = { id: string } & Record<string, unknown>

export const queryCommand = () =>
  listCommand('query')
    .description(
      'Queries any resource with a Mango selector, as in CouchDB: a field and its value, ' +
        'or operators on the field.',
    )
    .addArgument(new Argument('<resource>', 'the resource to query').choices(wordsOf<Resource>(RESOURCES)))
    .argument('[selector]', 'a JSON object; without one, everything visible matches')
    .option('--fields <names>', 'fields to show (comma-separated); dots reach related objects', collect)
    .option('--explain', 'run the query, and show how it was answered instead of the rows')
    .addHelpText(
      'after',
      examples(
        ['Rejected deliveries', `tidings query deliveries '{"status":"rejected"}'`],
        ['By name, in any case', `tidings query organisations '{"name":{"$regex":"(?i)acme"}}'`],
        [
          'Chosen fields, the newest five',
          'tidings query deliveries --fields id,status,webhook.url --sort=-createdAt --limit 5',
        ],
        ['Why is it slow?', `tidings query events '{"payload.projectReport.quarter":"2026-3"}' --explain`],
      ),
    )
    .action(async (resource, selector, options, command) => {
      const session = new Session(command)
      if (selector !== undefined && options.selector !== undefined) {
        throw usageError('The selector is given twice.', 'Give it as the second argument or with --selector.')
      }
      if (options.explain) return explain(session, resource, { ...options, selector: selector ?? options.selector })
      const fields = options.fields ?? RESOURCES[resource]
      await list<AnyResource>(
        session,
        { ...options, selector: selector ?? options.selector },
        {
          resource,
          noun: ['row', 'rows'],
          // The next page and --output id always need the id.
          fields: selection(['id', ...fields]),
          view: {
            columns: fields.map((field, index) => ({
              title: field,
              // Shortened ids and times are useless, and a requested field is never left out.
              ...(!/(\bid|Id|At|time)$/.test(field) && { shrinks: 'end' as const }),
              ...(!options.fields && index > 1 && { optional: true as const }),
              cell: row => cellText(valueAt(row, field)),
            })),
            empty: 'Nothing matches.',
          },
        },
      )
    })

interface Explanation {
  sql: string | null
  bindings: number
  indexes: string[] | null
  matchedRowByRow: string[]
  sortedAfterwards: string[]
  statements: number
  rowsExamined: number
}

const explain = async (session: Session, resource: Resource, given: ListOptions): Promise<void> => {
  const { output } = session
  const options = await resolvePlace(session, given, { resource })
  const { explanation } = await session.graphql<{ explanation: Explanation }>(
    `query ($resource: Resource!, $query: MangoQuery) {
      explanation: explain(resource: $resource, query: $query) {
        sql bindings indexes matchedRowByRow sortedAfterwards statements rowsExamined
      }
    }`,
    { resource, query: mangoQuery(options, output).query },
  )
  const { sql, indexes, matchedRowByRow, sortedAfterwards, statements, rowsExamined } = explanation
  const listed = (values: string[]) => (values.length === 0 ? 'none' : cellText(values.join(', ')))
  const untold = (toWhom: string) => (statements === 0 ? 'none: nothing can match' : `shown only to ${toWhom}`)
  output.one(explanation, colours =>
    describeFields(
      [
        ['SQL', sql === null ? untold('admins') : cellText(sql)],
        ['Indexes', indexes === null ? untold('admins who see all organisations') : listed(indexes)],
        ['Matched row by row', listed(matchedRowByRow)],
        ['Sorted afterwards by', listed(sortedAfterwards)],
        ['Rows examined', `${rowsExamined.toLocaleString('en-GB')} in ${count(statements, 'statement')}`],
      ],
      colours,
    ),
  )
  if (indexes?.length === 0 || matchedRowByRow.length > 0) {
    output.message('It may be slow on many rows. Add a condition that SQL can decide, such as on an id or a time.')
  }
}

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
