import { usageError } from './errors.ts'
import { neutralise } from './output/neutralise.ts'
import type { Webhook } from './webhook.ts'

/** A webhook as a file describes it. What is not given is left as it is, or as the API has it for a new one. */
export interface WebhookEntry {
  id?: string
  url: string
  events?: string[]
  organisationIds?: string[]
  projectIds?: string[]
  status?: 'active' | 'disabled'
}

const LISTS = ['events', 'organisationIds', 'projectIds'] as const
const KNOWN = ['id', 'url', ...LISTS, 'status']
/** What `webhooks list --output json` says besides, so that its output can be given back. */
const READ_ONLY = ['statusReason', 'createdAt', 'updatedAt', 'lastDeliveryAt', 'health']
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/**
 * Reads webhooks from a JSON array, from NDJSON, or from one object. Throws a CliError, exit code 2, that names every
 * fault of every entry, since a file of ten should not need ten tries.
 */
export const parseWebhookFile = (text: string, source: string): WebhookEntry[] => {
  const values = parse(text, source)
  const faults = values.flatMap((value, index) => faultsOf(value).map(fault => `  entry ${index + 1}: ${fault}`))
  if (faults.length === 0) faults.push(...repeated(values as WebhookEntry[]))
  if (faults.length > 0) {
    throw usageError(
      `${source} has ${faults.length === 1 ? 'a fault' : `${faults.length} faults`}; ` +
        `nothing was sent:\n${faults.join('\n')}`,
      `An entry is such as: {"url":"https://example.com/hooks","events":["token_expired"],"organisationIds":["ID"]}`,
    )
  }
  return (values as WebhookEntry[]).map(entry => {
    const wanted = Object.entries(entry).filter(([name, value]) => KNOWN.includes(name) && value !== null)
    const given = Object.fromEntries(wanted) as unknown as WebhookEntry
    return given.id === undefined ? given : { ...given, id: given.id.toLowerCase() }
  })
}

/** Which of what an entry gives is not so yet. */
export const differences = (entry: WebhookEntry, webhook: Webhook): (keyof WebhookEntry)[] => {
  const sameList = (one: string[], other: string[]) =>
    new Set(one).size === new Set(other).size && one.every(value => other.includes(value))
  return [
    ...(entry.url === webhook.url ? [] : (['url'] as const)),
    ...LISTS.filter(name => entry[name] !== undefined && !sameList(entry[name], webhook[name])),
    ...(entry.status === undefined || entry.status === webhook.status ? [] : (['status'] as const)),
  ]
}

const parse = (text: string, source: string): unknown[] => {
  if (text.trim() === '') throw usageError(`${source} is empty.`, 'It holds a JSON array of webhooks, or one a line.')
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) ? value : [value]
  } catch (error) {
    const lines = text.split('\n').flatMap((line, index) => (line.trim() === '' ? [] : [{ line, number: index + 1 }]))
    // An array over several lines is not one webhook a line: then it is the array that has the fault.
    if (lines.length === 1 || !lines[0]!.line.trim().startsWith('{') || lines[0]!.line.trim() === '{') {
      throw usageError(
        `${source} is not JSON: ${neutralise((error as Error).message)}.`,
        'It holds a JSON array of webhooks, or one a line.',
      )
    }
    return lines.map(({ line, number }) => {
      try {
        return JSON.parse(line) as unknown
      } catch (error) {
        throw usageError(`Line ${number} of ${source} is not JSON: ${neutralise((error as Error).message)}.`)
      }
    })
  }
}

const faultsOf = (value: unknown): string[] => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return ['it is no JSON object']
  const entry = value as Record<string, unknown>
  const unknown = Object.keys(entry).filter(name => !KNOWN.includes(name) && !READ_ONLY.includes(name))
  const { id, url, status } = entry
  return [
    ...unknown.map(name => `${JSON.stringify(name)} is unknown; there are ${KNOWN.join(', ')}`),
    ...(typeof url === 'string' && /^https?:$/.test(URL.parse(url)?.protocol ?? '')
      ? []
      : [`its url is ${shown(url)}; it is to be an absolute http or https URL`]),
    ...(id === undefined || id === null || (typeof id === 'string' && UUID.test(id))
      ? []
      : [`its id is ${shown(id)}; it is to be a UUID, or left out`]),
    ...LISTS.filter(name => !isGivenList(entry[name])).map(
      name => `its ${name} are ${shown(entry[name])}; a list of texts is wanted, empty for all`,
    ),
    ...(status === undefined || status === null || status === 'active' || status === 'disabled'
      ? []
      : [`its status is ${shown(status)}; a client sets active or disabled`]),
  ]
}

const isGivenList = (value: unknown): boolean =>
  value === undefined || value === null || (Array.isArray(value) && value.every(each => typeof each === 'string'))

const shown = (value: unknown): string => (value === undefined ? 'missing' : neutralise(JSON.stringify(value)))

/** Two entries for one webhook would undo each other on each run. */
const repeated = (entries: WebhookEntry[]): string[] => {
  const faults: string[] = []
  const seen = new Map<string, number>()
  entries.forEach((entry, index) => {
    const key = entry.id?.toLowerCase() ?? entry.url
    const first = seen.get(key)
    if (first === undefined) seen.set(key, index + 1)
    else
      faults.push(
        `  entry ${index + 1}: the same ${entry.id ? 'id' : 'url'} as entry ${first}; ` +
          `${entry.id ? 'keep one of them' : 'give each an id of its own'}`,
      )
  })
  return faults
}
