import { deliveryStatuses, eventTypes, permissions } from '../../shared/vocabulary.ts'
import { graphql } from '../connection/client.ts'
import { type ConnectionFlags, connect, resolveSettings } from '../connection/connection.ts'
import { readProfiles } from '../connection/profiles.ts'

export interface Candidate {
  value: string
  /** What it is. */
  text: string
}

/** A path, which the shell itself knows best. */
export const FILES = ':files'
export type Values = Candidate[] | typeof FILES

/** A person waits with a finger on the tab key. */
const TIMEOUT_MS = 2_000

interface ValueSlot {
  /** As the help names the value: `id`, `path`, `types`. */
  name: string
  /** The option whose value it is; empty for an argument. */
  option: string
  /** The command of the top level. */
  noun: string
  before: string[]
}

/**
 * What may stand for a value that has no fixed choices; nothing when that is not known, or the server does not tell.
 */
export const namedValues = async (place: ValueSlot): Promise<Values> => {
  const { name, option, noun } = place
  if (/^(path|file|folder)$/.test(name)) return FILES
  if (option === '--events' && name !== 'n') return plain(eventTypes.filter(type => type !== 'ping'))
  if (option === '--permissions') return plain(permissions)
  if (name === 'statuses') return plain(deliveryStatuses)
  if (option === '--profile' || option === '--save' || (noun === 'profiles' && name === 'name')) return profiles()
  const resource = idsFrom[option] ?? (name === 'id' ? idsFrom[noun] : undefined)
  return resource === undefined ? [] : latestOf(resource, place)
}

const plain = (values: readonly string[]): Candidate[] => values.map(value => ({ value, text: '' }))

const profiles = (): Candidate[] =>
  Object.entries(readProfiles().profiles).map(([value, { url }]) => ({ value, text: url }))

interface Listed {
  query: string
  fields: string
  text: (row: Record<string, string>) => string
}

const organisations: Listed = { query: 'organisations', fields: 'id name', text: row => row.name! }
const projects: Listed = { query: 'projects', fields: 'id name', text: row => row.name! }
const users: Listed = { query: 'users', fields: 'id name', text: row => row.name! }
const tokens: Listed = { query: 'accessTokens', fields: 'id name', text: row => row.name! }
const webhooks: Listed = {
  query: 'webhooks',
  fields: 'id name url status',
  text: row => `${row.name || row.url} ${row.status}`,
}

/** By the noun whose `<id>` it is, or by the option. */
export const idsFrom: Record<string, Listed> = {
  webhooks,
  '--webhook': webhooks,
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
  reports: { query: 'projectReports', fields: 'id quarter status', text: row => `${row.quarter} ${row.status}` },
}

/** The latest: whoever wants an older one has its id from elsewhere. */
const latestOf = async ({ query, fields, text }: Listed, { before }: ValueSlot): Promise<Candidate[]> => {
  const connection = connect(resolveSettings(connectionFlags(before), process.env, readProfiles()))
  const document = `{ rows: ${query}(query: { sort: [{ id: "desc" }], limit: 50 }) { ${fields} } }`
  const answer = graphql<{ rows: Record<string, string>[] }>(connection, document)
  const found = await Promise.race([
    answer,
    new Promise<undefined>(resolve => setTimeout(() => resolve(undefined), TIMEOUT_MS)),
  ])
  return (found?.rows ?? []).map(row => ({ value: row.id!, text: text(row) }))
}

/** What the line says of the connection; a secret from standard input is not available here. */
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
