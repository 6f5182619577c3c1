import pc from 'picocolors'
import { version } from '../../shared/version.ts'
import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import { graphql } from '../connection/client.ts'
import { connect, serverUrl } from '../connection/connection.ts'
import { proxyFor } from '../connection/network.ts'
import { difference, serverVersion } from '../connection/server-version.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { count, duration, relativeIso } from '../output/time.ts'
import { resolveId } from '../resources/ids.ts'
import { type Attempt, describeAttempt, hasFailed } from '../resources/timeline.ts'
import { askViewer, describeSight, type Viewer } from '../resources/viewer.ts'
import { healing, type Webhook, webhookFields } from '../resources/webhook.ts'
import { checkReachable } from './endpoint-check.ts'
import { type Finding, note, ok, problem, skipped } from './findings.ts'

const TIMEOUT_MS = 10_000
/** Signatures are valid for five minutes before and after. */
const SIGNATURE_WINDOW_MS = 5 * 60_000
/** The `Date` header has whole seconds, and the answer took some time. */
const CLOCK_TOLERANCE_MS = 30_000
const EXPIRES_SOON_MS = 14 * 86_400_000

/** Checks everything between this machine and the server, and with an id also that webhook. Changes nothing. */
export const diagnoseClient = async (session: Session, webhookId: string | undefined): Promise<Finding[]> => {
  const { settings } = session
  let url: URL
  try {
    url = serverUrl(settings)
  } catch (error) {
    return [failure('settings', error), skipped('the rest', 'needs the address of a server')]
  }
  const findings = [ok('settings', `${url.href} (from ${settings.url!.source})`)]
  findings.push(...authoritiesOf(session))
  const reached = await session.output.waiting(url.host, diagnoseServer(url))
  findings.push(...reached.findings)
  if (!reached.ready) return [...findings, skipped('access token', 'needs a server that is ready')]
  try {
    const connection = connect(settings)
    const viewer = await askViewer(document => session.output.waiting(url.host, graphql(connection, document)))
    findings.push(...diagnoseToken(viewer, session.output.nowMs))
    if (webhookId !== undefined) {
      findings.push(...(await diagnoseWebhook(session, await resolveId(session, 'webhooks', webhookId))))
    }
  } catch (error) {
    if (error instanceof CliError && ['NOT_FOUND', 'AMBIGUOUS'].includes(error.code)) throw error
    findings.push(
      error instanceof CliError && error.code === 'FORBIDDEN'
        ? note('access token', `good, but ${error.message}`, 'An admin can create one with the permission read.')
        : failure('access token', error),
    )
  }
  return findings
}

const authoritiesOf = ({ caFile }: Session): Finding[] =>
  caFile ? [ok('authorities', `those of ${caFile.value} (from ${caFile.source}) besides Node’s own`)] : []

/** The connection to the server, or to the proxy if one is used. */
const diagnoseConnection = async (url: URL): Promise<Finding> => {
  const proxy = proxyFor(url, process.env)
  if (!proxy) return checkReachable('connection', url)
  const reached = await checkReachable('connection', new URL(proxy.value))
  return { ...reached, found: `by the proxy ${proxy.value} (from ${proxy.source}): ${reached.found}` }
}

const diagnoseServer = async (url: URL): Promise<{ findings: Finding[]; ready: boolean }> => {
  const connection = await diagnoseConnection(url)
  if (connection.status === 'problem') {
    const next = `${connection.next} A sandbox starts with: npm start. Which server is used, and why: tidings config`
    return { findings: [{ ...connection, next }], ready: false }
  }
  const findings = [connection]
  if (url.protocol === 'http:' && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname)) {
    findings.push(
      note('TLS', 'none: others can read requests and answers in transit', 'Use the server’s https address.'),
    )
  }
  const { finding, response, startedAt } = await diagnoseReadiness(url.href.replace(/\/?$/, '/'))
  if (response === undefined) return { findings: [...findings, finding], ready: false }
  return {
    findings: [...findings, finding, ...(await diagnoseVersion(url)), ...diagnoseClock(response, startedAt)],
    ready: true,
  }
}

/** Whether the server is ready; its response only if it is, or says so at another address. */
const diagnoseReadiness = async (
  base: string,
): Promise<{ finding: Finding; startedAt: number; response?: Response }> => {
  const startedAt = Date.now()
  let response: Response
  try {
    response = await fetch(new URL('readyz', base), { redirect: 'manual', signal: AbortSignal.timeout(TIMEOUT_MS) })
  } catch (error) {
    const { cause = error } = error as { cause?: unknown }
    const found = `no answer: ${cause instanceof Error ? cause.message : String(cause)}`
    return { finding: problem('server', found, 'Ask whoever runs the server.'), startedAt }
  }
  const { status, reason } = ((await response.json().catch(() => undefined)) ?? {}) as Record<string, unknown>
  if (status === 'ready') return { finding: ok('server', 'ready'), startedAt, response }
  if (status === 'not ready') {
    const next = 'Whoever runs it can find out more with: tidings server doctor'
    return { finding: problem('server', `not ready: ${String(reason)}`, next), startedAt }
  }
  if (response.status === 404 && (await hasKeySet(base))) {
    const found = 'answers; whether it is ready is shown at an address for operations'
    return { finding: ok('server', found), startedAt, response }
  }
  const found = `${response.url || base} answered ${response.status}, and not as a Tidings server does`
  const next = 'Check the base URL with: tidings config. It is the part before /graphql.'
  return { finding: problem('server', found, next), startedAt }
}

/** Whether a server publishes keys there, like a server whose health checks are at another address. */
const hasKeySet = async (base: string): Promise<boolean> => {
  try {
    const response = await fetch(new URL('.well-known/jwks.json', base), { signal: AbortSignal.timeout(TIMEOUT_MS) })
    return Array.isArray(((await response.json()) as { keys?: unknown }).keys)
  } catch {
    return false
  }
}

const diagnoseVersion = async (url: URL): Promise<Finding[]> => {
  const found = await serverVersion(url)
  if (found === undefined) return []
  const differ = difference(found, version)
  return [
    differ === undefined
      ? ok('version', `${found}; this command line ${version}`)
      : note('version', `${found}; this command line ${version}`, differ),
  ]
}

const diagnoseClock = (response: Response, startedAtMs: number): Finding[] => {
  const serverMs = Date.parse(response.headers.get('date') ?? '')
  if (Number.isNaN(serverMs)) return []
  const offMs = (startedAtMs + Date.now()) / 2 - serverMs
  if (Math.abs(offMs) < CLOCK_TOLERANCE_MS) return [ok('clock', 'agrees with the server’s')]
  const found = `this machine’s is ${duration(Math.abs(offMs))} ${offMs < 0 ? 'behind' : 'ahead of'} the server’s`
  const judge = Math.abs(offMs) < SIGNATURE_WINDOW_MS ? note : problem
  return [judge('clock', found, 'Requests are refused if it is five minutes off. Switch network time on.')]
}

const diagnoseToken = (viewer: Viewer, nowMs: number): Finding[] => {
  const sees = describeSight(viewer)
  const may = viewer.permissions.join(', ')
  const expires = viewer.expiresAt === null ? 'does not expire' : `expires ${relativeIso(viewer.expiresAt, nowMs)}`
  const isSoon = viewer.expiresAt !== null && Date.parse(viewer.expiresAt) - nowMs < EXPIRES_SOON_MS
  const canSetUp = viewer.permissions.includes('webhooks') || viewer.permissions.includes('admin')
  return [
    isSoon
      ? note('access token', `${viewer.name}; ${expires}`, 'Have a new one created: tidings tokens create --help')
      : ok('access token', `${viewer.name}; ${expires}`),
    canSetUp
      ? ok('permissions', may)
      : note(
          'permissions',
          may,
          'It cannot set up, ping or redeliver: an admin can create one with the permission webhooks.',
        ),
    sees === 'no organisation'
      ? problem('sees', sees, 'An admin can create one that sees some: tidings tokens create --organisation ID')
      : ok('sees', sees),
  ]
}

interface RecentDelivery {
  id: string
  eventType: string
  status: DeliveryStatus
  createdAt: string
  nextAttemptAt: string | null
  attempts: Attempt[]
}

const diagnoseWebhook = async (session: Session, id: string): Promise<Finding[]> => {
  const { webhooks } = await session.graphql<{ webhooks: (Webhook & { deliveries: RecentDelivery[] })[] }>(
    `query ($query: MangoQuery) { webhooks(query: $query) { ${webhookFields}
      deliveries(query: { sort: [{ id: "desc" }], limit: 10 }) { id eventType status createdAt nextAttemptAt
        attempts(query: { sort: [{ number: "desc" }], limit: 1 }) {
          number startedAt durationMs statusCode failure failureDetail response retryAfter } } } }`,
    { query: { selector: { id } } },
  )
  const [webhook] = webhooks
  if (!webhook) {
    return [
      problem(
        'webhook',
        `none with id ${id} is visible to this access token`,
        'List the visible ones with: tidings webhooks list',
      ),
    ]
  }
  const events = webhook.events.length === 0 ? 'all events' : webhook.events.join(', ')
  const limits = webhook.organisationIds.length + webhook.projectIds.length
  const scope =
    limits === 0
      ? 'whatever its access token sees'
      : `${count(limits, 'organisation or project', 'organisations and projects')}`
  const url = URL.parse(webhook.url)
  return [
    webhook.status === 'active'
      ? ok('webhook', `${webhook.name ? `${webhook.name}, ` : ''}active; ${events}, of ${scope}`)
      : problem(
          'webhook',
          `${webhook.status}${webhook.statusReason ? `: ${webhook.statusReason}` : ''}`,
          `It receives nothing. When its endpoint works again: tidings webhooks enable ${id}`,
        ),
    diagnoseDeliveries(webhook, session.output.nowMs),
    ...(webhook.recovery === 'automatic' ? [diagnoseRecovery(webhook, session.output.nowMs)] : []),
    ...(url === null ? [] : [await diagnoseEndpoint(url)]),
  ]
}

const diagnoseDeliveries = (
  { id, deliveries, createdAt }: Webhook & { deliveries: RecentDelivery[] },
  nowMs: number,
): Finding => {
  const [last] = deliveries
  if (!last) {
    return note(
      'deliveries',
      `none yet; it was created ${relativeIso(createdAt, nowMs)}`,
      `Send one with: tidings webhooks ping ${id}. What should it have received? tidings events list --since 1d`,
    )
  }
  const when = `the last, ${last.eventType}, ${relativeIso(last.createdAt, nowMs)}`
  const wrong = deliveries.find(
    ({ status, attempts }) => hasFailed(status) || (status === 'pending' && attempts.length > 0),
  )
  if (!wrong) {
    const late =
      last.status === 'pending' && last.nextAttemptAt !== null && Date.parse(last.nextAttemptAt) < nowMs - 20_000
    return late
      ? problem(
          'deliveries',
          `${when}, has not been attempted`,
          'Does a server with the role “delivery” run? Whoever runs it can check: tidings server doctor',
        )
      : last.status === 'cancelled'
        ? note('deliveries', `${when}: cancelled`, `What it missed: tidings webhooks recover ${id} --since 1d`)
        : ok('deliveries', `${when}: ${last.status}`)
  }
  const failed = deliveries.filter(({ status }) => status !== 'delivered').length
  const [attempt] = wrong.attempts
  const said = attempt ? describeAttempt(attempt, pc.createColors(false)) : 'not attempted'
  return problem(
    'deliveries',
    `${failed} of the last ${deliveries.length} not delivered; ${wrong.eventType} ` +
      `${relativeIso(wrong.createdAt, nowMs)} is ${wrong.status}: ${said}`,
    `Its story: tidings deliveries show ${wrong.id}`,
  )
}

/** Whether it heals itself of something now. */
const diagnoseRecovery = (webhook: Webhook, nowMs: number): Finding => {
  const found = healing(webhook, iso => `${iso}, ${relativeIso(iso, nowMs)}`)
  return webhook.missedSince === null
    ? ok('recovery', found)
    : note(
        'recovery',
        found,
        `If the endpoint works again, it is healed sooner by: tidings webhooks ping ${webhook.id}`,
      )
}

/** Checks from this machine, not from the server, which may reach other endpoints. */
const diagnoseEndpoint = async (url: URL): Promise<Finding> => {
  const finding = await checkReachable('endpoint', url)
  return { ...finding, found: `from this machine: ${finding.found}` }
}

/** The refusal of the API or the connection, with its hint. */
const failure = (name: string, error: unknown): Finding => {
  if (!(error instanceof CliError)) throw error
  const next =
    error.hint ??
    (error.exitCode === exitCodes.unreachable
      ? 'Try again in a moment.'
      : 'See which settings are used with: tidings config')
  return problem(name, error.message, next)
}
