import { deliveryStatuses, eventTypes, permissions } from '../../shared/vocabulary.ts'
import { graphql } from '../connection/client.ts'
import { type ConnectionFlags, connect, resolveSettings } from '../connection/connection.ts'
import { readProfiles } from '../connection/profiles.ts'

export interface Candidate {
  value: string
  /** Its description. */
  text: string
}

/** A path, which the shell completes itself. */
export const FILES = ':files'
export type Values = Candidate[] | typeof FILES

/** The time limit, because a person waits at the tab key. */
const TIMEOUT_MS = 2_000

interface ValueSlot {
  /** The value's name in the help: `id`, `path`, `types`. */
  name: string
  /** The option of the value; empty for an argument. */
  option: string
  /** The command of the top level. */
  noun: string
  before: string[]
}

/** The candidates of a value without fixed choices; none if they are unknown or the server does not answer. */
export const namedValues = async (place: ValueSlot): Promise<Values> => {
  const { name, option, noun, before } = place
  if (/^(path|file|folder)$/.test(name)) return FILES
  if (option === '--events' && name !== 'n') return plain(eventTypes.filter(type => type !== 'ping'))
  if (option === '--permissions') return plain(permissions)
  if (option === '--fields') return plain((await import('./fields.ts')).fieldsOf(before))
  if (name === 'statuses') return plain(deliveryStatuses)
  if (option === '--profile' || option === '--save' || (noun === 'profiles' && name === 'name')) return profiles()
  const resource = idsFrom[option] ?? (/^ids?$/.test(name) ? idsFrom[noun] : undefined)
  return resource === undefined ? [] : latestOf(resource, place)
}

const plain = (values: readonly string[]): Candidate[] => values.map(value => ({ value, text: '' }))

const profiles = (): Candidate[] =>
  Object.entries(readProfiles().profiles).map(([value, { url }]) => ({ value, text: url }))

interface Listed {
  query: string
  fields: string
  text: (row: Record<string, string>) => string
  /** Its rows are accepted by their names too. */
  isNamed?: true
}

const organisations: Listed = { query: 'organisations', fields: 'id name', text: row => row.name!, isNamed: true }
const projects: Listed = { query: 'projects', fields: 'id name', text: row => row.name!, isNamed: true }
const users: Listed = { query: 'users', fields: 'id name', text: row => row.name!, isNamed: true }
const tokens: Listed = { query: 'accessTokens', fields: 'id name', text: row => row.name!, isNamed: true }
const webhooks: Listed = {
  query: 'webhooks',
  fields: 'id name url status',
  text: row => `${row.name || row.url} ${row.status}`,
  isNamed: true,
}

/** By the noun of the `<id>`, or by the option. */
export const idsFrom: Record<string, Listed> = {
  webhooks,
  '--webhook': webhooks,
  '--webhook-id': webhooks,
  organisations,
  projects,
  users,
  '--organisation': organisations,
  '--project': projects,
  '--submitter': users,
  '--approver': users,
  deliveries: { query: 'deliveries', fields: 'id eventType status', text: row => `${row.eventType} ${row.status}` },
  events: { query: 'events', fields: 'id type time', text: row => `${row.type} ${row.time}` },
  tokens,
  '--keep': tokens,
  '--token': tokens,
  '--subject': webhooks,
  audit: { query: 'auditLog', fields: 'id operation', text: row => row.operation! },
  reports: { query: 'projectReports', fields: 'id quarter status', text: row => `${row.quarter} ${row.status}` },
}

/** Offers the latest ones, by names that no other has and by ids; older ids come from elsewhere. */
const latestOf = async ({ query, fields, text, isNamed }: Listed, { before }: ValueSlot): Promise<Candidate[]> => {
  const connection = connect(resolveSettings(connectionFlags(before), process.env, readProfiles()))
  const document = `{ rows: ${query}(query: { sort: [{ id: "desc" }], limit: 50 }) { ${fields} } }`
  const answer = graphql<{ rows: Record<string, string>[] }>(connection, document)
  const found = await Promise.race([
    answer,
    new Promise<undefined>(resolve => setTimeout(() => resolve(undefined), TIMEOUT_MS)),
  ])
  const rows = found?.rows ?? []
  const called = (name: string) => rows.filter(row => row.name === name).length
  const named = isNamed ? rows.filter(({ name }) => name && called(name) === 1) : []
  return [
    ...named.map(row => ({ value: row.name!, text: row.url ?? row.id! })),
    ...rows.map(row => ({ value: row.id!, text: text(row) })),
  ]
}

/** The connection flags of the line; a secret from standard input is not available here. */
const connectionFlags = (before: string[]): ConnectionFlags => {
  const given = (...flags: string[]) => {
    for (const [index, word] of before.entries()) {
      if (flags.includes(word)) return before[index + 1]
      const flag = flags.find(flag => word.startsWith(`${flag}=`))
      if (flag) return word.slice(flag.length + 1)
    }
    return undefined
  }
  return {
    profile: given('--profile', '-p'),
    url: given('--url'),
    apiKey: given('--api-key'),
    apiSecretFile: given('--api-secret-file'),
  }
}
