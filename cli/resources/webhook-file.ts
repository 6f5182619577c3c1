import { isDeepStrictEqual } from 'node:util'
import { isId } from '../../shared/ids.ts'
import { keyOfSecret, SECRET_FORM } from '../../shared/standard-webhooks.ts'
import { webhookOrderings, webhookRecoveries, webhookSignings, webhookTransports } from '../../shared/vocabulary.ts'
import { usageError } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { wordsOf } from '../output/words.ts'
import { fieldNames, inputTypes, settableStatuses, type Webhook, type WebhookInput } from './webhook.ts'

/** A webhook in a file. Missing fields stay as they are, or get the API's default for a new one. */
export type WebhookEntry = Partial<WebhookInput> & Pick<WebhookInput, 'url'>

const KNOWN = wordsOf<keyof WebhookEntry>(inputTypes)
const isKnown = (name: string): boolean => KNOWN.some(known => known === name)
/** Fields of `webhooks list --output json` that are accepted and ignored, so that its output can be applied. */
const isReadOnly = (name: string): boolean => fieldNames.some(known => known === name)

/** The checks of an entry: each returns the fault of a value in at most a sentence. */
const FAULTS: Record<keyof WebhookEntry, (value: unknown) => string | undefined> = {
  url: value =>
    typeof value === 'string' && /^https?:$/.test(URL.parse(value)?.protocol ?? '')
      ? undefined
      : `its url is ${shown(value)}; it must be an absolute http or https URL`,
  id: value =>
    isLeftOut(value) || (typeof value === 'string' && isId(value))
      ? undefined
      : `its id is ${shown(value)}; it must be a UUID, or absent`,
  name: value =>
    isLeftOut(value) || typeof value === 'string' ? undefined : `its name is ${shown(value)}; it must be a text`,
  labels: value =>
    isLeftOut(value) || isTexts(value)
      ? undefined
      : `its labels are ${shown(value)}; each key needs a text, such as {"team":"payments"}`,
  events: value => faultOfList('events', value),
  organisationIds: value => faultOfList('organisationIds', value),
  projectIds: value => faultOfList('projectIds', value),
  ordering: value =>
    isLeftOut(value) || webhookOrderings.some(ordering => ordering === value)
      ? undefined
      : `its ordering is ${shown(value)}; it must be ${webhookOrderings.join(' or ')}`,
  transport: value =>
    isLeftOut(value) || webhookTransports.some(transport => transport === value)
      ? undefined
      : `its transport is ${shown(value)}; it must be ${webhookTransports.join(' or ')}`,
  recovery: value =>
    isLeftOut(value) || webhookRecoveries.some(recovery => recovery === value)
      ? undefined
      : `its recovery is ${shown(value)}; it must be ${webhookRecoveries.join(' or ')}`,
  signing: value =>
    isLeftOut(value) || webhookSignings.some(signing => signing === value)
      ? undefined
      : `its signing is ${shown(value)}; it must be ${webhookSignings.join(' or ')}`,
  secret: value =>
    isLeftOut(value) || (typeof value === 'string' && keyOfSecret(value))
      ? undefined
      : `its secret is not ${SECRET_FORM}`,
  headers: value =>
    isLeftOut(value) || isTexts(value) || isNames(value)
      ? undefined
      : 'each of its headers needs a text, such as {"X-Api-Key":"…"}; names alone keep those that it has',
  status: value =>
    isLeftOut(value) || settableStatuses.some(status => status === value)
      ? undefined
      : `its status is ${shown(value)}; a client sets ${settableStatuses.join(' or ')}`,
}

/**
 * Reads webhooks from a JSON array, from NDJSON, or from one object. Throws a CliError, exit code 2, with every fault
 * of every entry.
 */
export const parseWebhookFile = (text: string, source: string): WebhookEntry[] => {
  const values = parse(text, source)
  const faults = values.flatMap((value, index) => faultsOf(value).map(fault => `  entry ${index + 1}: ${fault}`))
  if (faults.length === 0) faults.push(...repeated(values as WebhookEntry[]))
  if (faults.length > 0) {
    throw usageError(
      `${source} has ${faults.length === 1 ? 'a fault' : `${faults.length} faults`}; ` +
        `nothing was sent:\n${faults.join('\n')}`,
      `Example of an entry: {"url":"https://example.com/hooks","events":["token_expired"],"organisationIds":["ID"]}`,
    )
  }
  return (values as WebhookEntry[]).map(entry => {
    const wanted = Object.entries(entry).filter(
      ([name, value]) => isKnown(name) && value !== null && !(name === 'headers' && isNames(value)),
    )
    const given = Object.fromEntries(wanted) as unknown as WebhookEntry
    return given.id === undefined ? given : { ...given, id: given.id.toLowerCase() }
  })
}

/** The fields of an entry that differ from the webhook. */
export const differences = (entry: WebhookEntry, webhook: Webhook): (keyof WebhookEntry)[] =>
  KNOWN.filter(name => name !== 'id' && entry[name] !== undefined && !isAsGiven(name, entry, webhook))

/**
 * Secrets cannot be compared. A webhook that has one keeps it, since only a rotation replaces it; static headers are
 * always sent.
 */
const isAsGiven = (name: keyof WebhookEntry, entry: WebhookEntry, webhook: Webhook): boolean =>
  name === 'secret' ? webhook.signing === 'standard' : name !== 'headers' && isSame(entry[name], webhook[name])

type Value = Webhook[keyof WebhookInput] | WebhookInput[keyof WebhookInput] | undefined

/** Compares lists and labels without their order; a missing name equals an empty one. */
const isSame = (one: Value, other: Value): boolean => {
  if (Array.isArray(one) && Array.isArray(other)) {
    return new Set(one).size === new Set(other).size && one.every(value => other.includes(value))
  }
  if (isTexts(one) && isTexts(other)) return isDeepStrictEqual({ ...one }, { ...other })
  return (one ?? '') === (other ?? '')
}

const isTexts = (value: unknown): value is Record<string, string> =>
  typeof value === 'object' &&
  value !== null &&
  !Array.isArray(value) &&
  Object.values(value).every(each => typeof each === 'string')

/** The static headers of a webhook as they are read: their names. */
const isNames = (value: unknown): boolean => Array.isArray(value) && value.every(each => typeof each === 'string')

const parse = (text: string, source: string): unknown[] => {
  if (text.trim() === '')
    throw usageError(`${source} is empty.`, 'It must hold a JSON array of webhooks, or one a line.')
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) ? value : [value]
  } catch (error) {
    const lines = text.split('\n').flatMap((line, index) => (line.trim() === '' ? [] : [{ line, number: index + 1 }]))
    // For an array over several lines, the fault of the whole text is reported.
    if (lines.length === 1 || !lines[0]!.line.trim().startsWith('{') || lines[0]!.line.trim() === '{') {
      throw usageError(
        `${source} is not JSON: ${neutralise((error as Error).message)}.`,
        'It must hold a JSON array of webhooks, or one a line.',
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
  const unknown = Object.keys(entry).filter(name => !isKnown(name) && !isReadOnly(name))
  return [
    ...unknown.map(name => `${JSON.stringify(name)} is unknown; there are ${KNOWN.join(', ')}`),
    ...wordsOf(FAULTS).flatMap(name => FAULTS[name](entry[name]) ?? []),
  ]
}

const isLeftOut = (value: unknown): boolean => value === undefined || value === null

const faultOfList = (name: string, value: unknown): string | undefined =>
  isLeftOut(value) || (Array.isArray(value) && value.every(each => typeof each === 'string'))
    ? undefined
    : `its ${name} are ${shown(value)}; it must be a list of texts, empty for all`

const shown = (value: unknown): string => (value === undefined ? 'missing' : neutralise(JSON.stringify(value)))

/** Refuses two entries for one webhook, which would undo each other on each run. */
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
