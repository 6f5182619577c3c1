import { graphql, graphqlRequest } from '../connection/client.ts'
import type { Session } from '../connection/session.ts'
import { withoutSecrets } from '../connection/without-secrets.ts'
import { CliError, exitCodes } from '../errors.ts'
import { readText } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { idForUrl, unlessForbidden, upsertWebhook, type Webhook, webhookFields } from '../resources/webhook.ts'
import { differences, parseWebhookFile, type WebhookEntry } from '../resources/webhook-file.ts'
import { mustShowSecret } from '../resources/webhook-secrets.ts'

interface Result {
  id: string
  url: string
  outcome: 'created' | 'changed' | 'unchanged' | 'failed' | 'to create' | 'to change'
  /** What was changed. */
  changed: string[]
  /** Of a webhook that is signed by Standard Webhooks from now on: shown only this once. */
  secret?: string | undefined
  error: { code: string; message: string; hint: string | null } | null
}

/** How many webhooks are pinged at once, so that ten endpoints that do not answer do not take minutes. */
const AT_ONCE = 5

/**
 * Applies the webhooks of a file: creates missing ones, changes those that differ, leaves the others alone. A failure
 * does not stop the others. Throws a CliError, exit code 1, if any failed.
 */
export const applyWebhookFile = async (session: Session, path: string): Promise<void> => {
  const source = path === '-' ? 'Standard input' : path
  const text = readText(path === '-' ? '-' : `@${path}`, source)
  // What a list that found nothing has printed; an empty file is a mistake.
  const entries = path === '-' && text.trim() === '' ? [] : parseWebhookFile(text, source)
  if (entries.length === 0) {
    session.output.list([], viewOf([]))
    return session.output.message('No webhooks: nothing to do.')
  }
  const plan = await plannedFor(session, entries)
  await confirmDisabling(session, plan)
  const signs = plan.some(({ entry, exists, changed }) => isMade(entry) && (!exists || changed.includes('signing')))
  if (signs && !session.dryRun) mustShowSecret(session, undefined)
  const results: Result[] = []
  const waiting = plan.entries()
  const work = async (): Promise<void> => {
    for (const [index, planned] of waiting) results[index] = await make(session, planned)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  session.output.list(results, viewOf(results))
  for (const [index, { error }] of results.entries()) {
    if (error) session.output.message(`Entry ${index + 1}: ${error.message}`)
  }
  const counted = ['created', 'changed', 'unchanged', 'to create', 'to change', 'failed'].flatMap(outcome => {
    const number = results.filter(result => result.outcome === outcome).length
    return number === 0 ? [] : [`${number} ${outcome}`]
  })
  const failed = results.filter(result => result.error)
  session.output.message(`${count(results.length, 'webhook')}: ${counted.join(', ')}.`)
  if (session.dryRun) session.output.message('Dry run: nothing was changed.')
  if (failed.length === 0) return
  throw new CliError(
    exitCodes.failed,
    'PARTLY_FAILED',
    `${failed.length} of ${count(results.length, 'webhook')} could not be set up.`,
    'Correct what is reported above and run it again: what is done already stays as it is.',
  )
}

/** Whether the server makes a secret for an entry that is new or begins to sign. */
const isMade = ({ signing, secret }: WebhookEntry): boolean => signing === 'standard' && secret === undefined

/** Disabling cancels pending deliveries, so a file that disables needs confirmation too. */
const confirmDisabling = async (session: Session, plan: Planned[]): Promise<void> => {
  const urls = plan.flatMap(({ entry, exists, changed }) =>
    exists && entry.status === 'disabled' && changed.includes('status') ? [cellText(entry.url)] : [],
  )
  if (urls.length === 0 || session.dryRun) return
  await confirm(`Disable ${urls.join(' and ')}, and cancel what is waiting to be sent there?`, session)
}

interface Planned {
  entry: WebhookEntry & { id: string }
  exists: boolean
  changed: (keyof WebhookEntry)[]
}

/**
 * The webhook of each entry: the one with its id, else the one with its URL, else a new one. Throws a CliError if
 * several have the URL.
 */
const plannedFor = async (session: Session, entries: WebhookEntry[]): Promise<Planned[]> => {
  const { connection } = session
  const asked = graphql<{ webhooks: Webhook[] }>(
    connection,
    `query ($query: MangoQuery) { webhooks(query: $query) { ${webhookFields} } }`,
    {
      query: {
        selector: {
          $or: [
            { id: { $in: entries.flatMap(({ id }) => id ?? []) } },
            { url: { $in: entries.map(({ url }) => url) } },
          ],
        },
      },
    },
  )
  const found = await session.output.waiting(connection.url.host, asked).catch(unlessForbidden)
  if (!found) {
    session.output.warning(
      'Without the permission read, existing webhooks are unknown: an entry without an id means the webhook ' +
        'that this access token created this way for its URL.',
    )
  }
  const { webhooks } = found ?? { webhooks: [] }
  const planned = entries.map(async (entry): Promise<Planned> => {
    const sameUrl = webhooks.filter(webhook => webhook.url === entry.url)
    const [known, ...more] = entry.id === undefined ? sameUrl : webhooks.filter(webhook => webhook.id === entry.id)
    if (more.length > 0) {
      throw new CliError(
        exitCodes.failed,
        'AMBIGUOUS',
        `There are ${more.length + 1} webhooks with the URL ${cellText(entry.url)}: ` +
          `${sameUrl.map(({ id }) => cellText(id)).join(', ')}.`,
        'Give the entry the id of the right one. Nothing was changed.',
      )
    }
    const id = known?.id ?? entry.id ?? (await idForUrl(connection.apiKey, entry.url))
    return { entry: { ...entry, id }, exists: known !== undefined, changed: known ? differences(entry, known) : [] }
  })
  return Promise.all(planned)
}

const make = async (session: Session, { entry, exists, changed }: Planned): Promise<Result> => {
  const { id, url } = entry
  const result = { id, url, changed, error: null }
  if (exists && changed.length === 0) return { ...result, outcome: 'unchanged' }
  const variables = exists ? Object.fromEntries([['id', id], ...changed.map(name => [name, entry[name]])]) : entry
  if (session.dryRun) {
    const { body, ...request } = graphqlRequest(session.url, upsertWebhook, withoutSecrets(variables))
    session.output.detail(`POST ${request.url.href} ${body}`)
    return { ...result, outcome: exists ? 'to change' : 'to create' }
  }
  try {
    const { webhook } = await session.graphql<{ webhook: Webhook }>(upsertWebhook, variables)
    const isNew = !exists && webhook.createdAt === webhook.updatedAt
    return { ...result, ...(webhook.secret && { secret: webhook.secret }), outcome: isNew ? 'created' : 'changed' }
  } catch (error) {
    // An error that is not this webhook's fault would stop the others too.
    if (!(error instanceof CliError) || error.exitCode === exitCodes.unreachable || error.code === 'UNAUTHENTICATED')
      throw error
    const { code, message, hint = null } = error
    return { ...result, outcome: 'failed', error: { code, message, hint } }
  }
}

const viewOf = (results: Result[]): View<Result> => ({
  columns: [
    { title: 'ID', isId: true, cell: row => cellText(row.id) },
    {
      title: 'OUTCOME',
      cell: ({ outcome }, colours) =>
        (outcome === 'failed' ? colours.red : outcome === 'unchanged' ? colours.dim : colours.green)(outcome),
    },
    { title: 'URL', shrinks: 'url', cell: row => cellText(row.url) },
    ...(results.some(({ changed }) => changed.length > 0)
      ? [{ title: 'CHANGED', shrinks: 'end' as const, cell: ({ changed }: Result) => cellText(changed.join(', ')) }]
      : []),
    ...(results.some(({ secret }) => secret)
      ? [{ title: 'SECRET, SHOWN ONCE', cell: ({ secret }: Result) => cellText(secret ?? null) }]
      : []),
  ],
  empty: 'The file holds no webhooks.',
})
