import type { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { cellText, type View } from '../output/output.ts'
import type { ListOptions } from './list-options.ts'

interface Count {
  key: Record<string, unknown>
  count: number
}

/** The fields by which a related object is counted: its id, then the names, of which the first present is shown. */
const RELATED: Record<string, [id: string, ...names: string[]]> = {
  webhook: ['webhookId', 'webhook.name', 'webhook.url'],
  event: ['eventId', 'event.type'],
  organisation: ['organisationId', 'organisation.name'],
  project: ['projectId', 'project.name'],
  submitter: ['submitterId', 'submitter.name'],
  approver: ['approverId', 'approver.name'],
}

const COUNTS = `query ($resource: Resource!, $selector: MangoSelector, $by: [String!]) {
  counts(resource: $resource, selector: $selector, by: $by) { key count }
}`

export const isCounting = ({ count, by }: ListOptions): boolean => count === true || by !== undefined

/** The number of matching rows by the fields of --by, most frequent first. */
export const countRows = async (
  session: Session,
  options: ListOptions,
  { resource, selector }: { resource: string; selector: Record<string, unknown> | undefined },
): Promise<void> => {
  const { output } = session
  for (const name of ['all', 'limit', 'after', 'afterValues', 'sort'] as const) {
    if (options[name] === undefined) continue
    const flag = `--${name === 'afterValues' ? 'after-values' : name}`
    throw usageError(`--count and ${flag} are both given; ${flag} is for lists.`, `Leave out ${flag}.`)
  }
  if (output.form === 'id') throw usageError('A count has no ids.', 'Ask for another form, such as --output json.')
  const names = options.by ?? []
  const by = names.flatMap(name => RELATED[name] ?? [name])
  const variables = { resource, ...(selector && { selector }), ...(by.length > 0 && { by }) }
  const { counts } = await session.graphql<{ counts: Count[] }>(COUNTS, variables)
  output.list(counts, viewOf(names))
}

const viewOf = (names: string[]): View<Count> => ({
  columns: [
    { title: 'COUNT', align: 'right', cell: ({ count }) => count.toLocaleString('en-GB') },
    ...names.map(name => ({
      title: name.toUpperCase(),
      ...(name === 'webhook' && { shrinks: 'url' as const }),
      cell: ({ key }: Count) => cellText(shownOf(name, key)),
    })),
  ],
  empty: 'Nothing matches.',
})

const shownOf = (name: string, key: Count['key']): unknown => {
  const [id, ...names] = RELATED[name] ?? [name]
  return names.map(each => key[each]).find(value => value !== null && value !== undefined) ?? key[id]
}
