import { keyOfSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { type Carried, openCarried } from '../domain/webhook-requests.ts'
import type { Sealer } from '../keys/seal.ts'

type Opened = Pick<Carried, 'headers'> & { keys: { key: Buffer; until: number | null }[] }

/** What was opened, so that each request need not open it again. The sealed text of a change is another one. */
const opened = new WeakMap<Sealer, Map<string, Opened>>()
const MOST_OPENED = 10_000

/**
 * The headers of a request besides those of each delivery: the static ones of its webhook, and the signatures of
 * Standard Webhooks by its present secret and by each earlier one that has not ended.
 *
 * @param options.isPulled a client takes it, which need not know what the static headers tell an endpoint
 */
export const carriedHeaders = (
  sealer: Sealer,
  { deliveryId, webhookId, requestSealed }: { deliveryId: string; webhookId: string; requestSealed: string | null },
  body: string,
  nowMs: number,
  { isPulled = false }: { isPulled?: boolean } = {},
): Record<string, string> => {
  if (requestSealed === null) return {}
  const { headers: given, keys } = open(sealer, webhookId, requestSealed)
  const headers = isPulled ? {} : given
  if (keys.length === 0) return headers
  const timestampSeconds = Math.floor(nowMs / 1000)
  const signing = keys.filter(({ until }) => until === null || until > nowMs)
  return {
    ...headers,
    'webhook-id': deliveryId,
    'webhook-timestamp': String(timestampSeconds),
    'webhook-signature': signing
      .map(({ key }) => standardSignature(key, { id: deliveryId, timestampSeconds, body }))
      .join(' '),
  }
}

const open = (sealer: Sealer, webhookId: string, sealed: string): Opened => {
  const known = opened.get(sealer) ?? new Map<string, Opened>()
  opened.set(sealer, known)
  const found = known.get(sealed)
  if (found) return found
  const { headers, secrets } = openCarried(sealer, webhookId, sealed)
  const fresh = { headers, keys: secrets.map(({ secret, until }) => ({ key: keyOfSecret(secret)!, until })) }
  if (known.size >= MOST_OPENED) known.clear()
  known.set(sealed, fresh)
  return fresh
}

/** A shorter value says little, and would hide much else. */
const SHORTEST_HIDDEN = 6
const HIDDEN = '…'

/**
 * What an endpoint answered, without the values of the static headers that it was sent: an endpoint that is being tried
 * out repeats them, and what is kept of its answer is read by more people than may know them. The text may end in the
 * middle of a value.
 */
export const withoutCarried = (
  sealer: Sealer,
  { webhookId, requestSealed }: { webhookId: string; requestSealed: string | null },
): ((text: string) => string) => {
  if (requestSealed === null) return text => text
  const values = Object.values(open(sealer, webhookId, requestSealed).headers)
  const written = new Set(values.filter(value => value.length >= SHORTEST_HIDDEN).flatMap(asWritten))
  // The longest first: one value may be the beginning of another.
  const hidden = [...written].toSorted((one, other) => other.length - one.length)
  return text => hidden.reduce(without, text)
}

/** A value as pages for debugging write it: as it is, in JSON, in a URL, in HTML. */
const asWritten = (value: string): string[] => {
  const inJson = JSON.stringify(value).slice(1, -1)
  const inUrl = encodeURIComponent(value)
  const inHtml = value.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
  return [
    value,
    inJson,
    inJson.replaceAll('/', '\\/'),
    inJson.replace(/[&<>]/g, character => `\\u00${character.charCodeAt(0).toString(16)}`),
    inUrl,
    inUrl.replaceAll('%20', '+'),
    inHtml,
    inHtml.replaceAll('"', '&quot;'),
    Buffer.from(value).toString('base64'),
  ]
}

const without = (text: string, value: string): string => {
  const rest = text.replaceAll(value, HIDDEN)
  for (let length = Math.min(value.length - 1, rest.length); length >= SHORTEST_HIDDEN; length--) {
    if (rest.endsWith(value.slice(0, length))) return rest.slice(0, -length) + HIDDEN
  }
  return rest
}
