import { stripVTControlCharacters } from 'node:util'
import { parseIso } from '../../../shared/time.ts'
import { type Colours, cellText, describeFields } from '../../output/output.ts'
import { dateAndTime, relativeTime, zoneAt, zoneName } from '../../output/time.ts'
import { labelsCell, webhookStatusCell } from '../../resources/cells.ts'
import { describeDelivery, describeState } from '../../resources/timeline.ts'
import { describeHealth, healing, type Webhook, type WebhookLines, whoWaits } from '../../resources/webhook.ts'
import { HOURS, lineOf } from './last-day.ts'
import type { Layout } from './layout.ts'
import { filledUp, rule, wrapLine } from './lines.ts'
import { type State, selectedDelivery, selectedWebhook } from './state.ts'

/** The columns where a field's value and the text beside a time begin; continuation lines are indented to them. */
const FIELD = /^(\S[^:]*?\s{2,}|\s{2,})(?=\S)/
const TIMED = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d {2}/
/** The details of the selection as scrollable lines, wrapped to the pane's width. */
export const detailsLines = (state: State, { detailsWidth: width }: Layout, colours: Colours): string[] =>
  textOf(state, colours)
    .trimEnd()
    .split('\n')
    .flatMap(line => {
      const bare = stripVTControlCharacters(line)
      const indent = (TIMED.exec(bare) ?? FIELD.exec(bare))?.[0].length ?? 0
      return wrapLine(line, width, indent)
    })

export const detailsPane = (
  state: State,
  lines: string[],
  { detailsWidth: width, detailsRows: height }: Layout,
  colours: Colours,
): string[] => {
  const furthest = Math.max(0, lines.length - height)
  const first = Math.min(state.scrolled, furthest)
  const place = furthest === 0 ? '' : first === furthest ? 'end' : `${Math.round((100 * first) / furthest)} %`
  const focused = state.focus === 'details'
  const title = rule(titleOf(state), place, width, focused)
  const head = focused ? colours.bold(title) : title
  return [head, ...filledUp(lines.slice(first, first + height), height)]
}

/** The state is in the title, which does not scroll away. */
const titleOf = (state: State): string => {
  if (state.detailsOf === 'webhooks') return 'Webhook'
  const delivery = selectedDelivery(state)
  return delivery ? `Story · ${describeState(delivery, state.nowMs)}` : 'Story'
}

const textOf = (state: State, colours: Colours): string => {
  if (state.detailsOf === 'webhooks') {
    const webhook = selectedWebhook(state)
    return webhook
      ? describeWebhook(webhook, state, colours)
      : 'Select a webhook with ↓ to see what it is sent, and the health of each.'
  }
  if (state.deliveryId === undefined)
    return 'Select a delivery with ↓ to see its story. The list then stays still; home lets it follow again.'
  if (state.timeline === undefined) return 'Looking …'
  if (state.timeline === null) return 'It no longer exists, or this access token does not see it.'
  return describeDelivery(state.timeline, state.nowMs, colours)
}

const describeWebhook = (webhook: Webhook, { nowMs, lastDay }: State, colours: Colours): string => {
  const zone = zoneAt(nowMs)
  const time = (iso: string): string => {
    const ms = parseIso(iso)
    return ms === undefined ? cellText(iso) : `${dateAndTime(ms, zone)}  ${colours.dim(relativeTime(ms, nowMs))}`
  }
  const listed = (values: string[], none: string) => (values.length === 0 ? none : cellText(values.join(', ')))
  const limited = webhook.organisationIds.length + webhook.projectIds.length > 0
  const lines: WebhookLines = {
    id: ['Webhook', cellText(webhook.id)],
    name: webhook.name ? ['Name', cellText(webhook.name)] : undefined,
    url: ['URL', cellText(webhook.url)],
    labels: Object.keys(webhook.labels ?? {}).length > 0 ? ['Labels', labelsCell(webhook.labels)] : undefined,
    status: ['Status', webhookStatusCell(webhook, colours)],
    statusReason: webhook.statusReason ? ['', cellText(webhook.statusReason)] : undefined,
    health: ['Last 24 hours', describeHealth(webhook.health, colours)],
    lastDeliveryAt: ['Last delivery', webhook.lastDeliveryAt ? time(webhook.lastDeliveryAt) : '–'],
    events: ['Events', listed(webhook.events, 'all')],
    organisationIds: [
      'Organisations',
      listed(webhook.organisationIds, limited ? 'none' : 'all that its access token sees'),
    ],
    projectIds: ['Projects', listed(webhook.projectIds, limited ? 'none' : 'all that its access token sees')],
    ordering: webhook.ordering === 'none' ? undefined : ['Ordering', `by ${cellText(webhook.ordering)}`],
    transport: webhook.transport === 'pull' ? ['Transport', `pull: ${whoWaits(webhook.clients)}`] : undefined,
    clients: undefined,
    recovery: webhook.recovery === 'automatic' ? ['Recovery', healing(webhook)] : undefined,
    missedSince: undefined,
    nextPingAt: undefined,
    recoveredAt: undefined,
    signing: webhook.signing === 'token' ? undefined : ['Signing', 'token and Standard Webhooks'],
    headers: webhook.headers.length > 0 ? ['Headers', cellText(webhook.headers.join(', '))] : undefined,
    secret: undefined,
    createdAt: ['Created', time(webhook.createdAt)],
    updatedAt: ['Changed', time(webhook.updatedAt)],
    deletedAt: undefined,
  }
  const fields = Object.values(lines).filter(line => line !== undefined)
  const day = lineOf(lastDay.get(webhook.id), HOURS)
  const byHour: [string, string][] = day === '' ? [] : [['By hour', day]]
  return describeFields([...fields, ...byHour, ['Times', `${zoneName(zone)}, as on this machine`]], colours)
}
