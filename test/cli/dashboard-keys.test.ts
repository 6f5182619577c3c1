import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Delivery, type DeliveryAtAGlance, describeState } from '../../cli/resources/timeline.ts'
import type { Webhook } from '../../cli/resources/webhook.ts'
import { paste, press, type Sizes } from '../../cli/screens/dashboard/keys.ts'
import { afterLook, afterOlder, MOST_ROWS } from '../../cli/screens/dashboard/looks.ts'
import { initialState, type State, selectedDelivery, selectorOf } from '../../cli/screens/dashboard/state.ts'

const AT = Date.parse('2026-11-21T00:40:00Z')
const SIZES: Sizes = { webhookRows: 5, deliveryRows: 10, detailsRows: 10, detailsLines: 30, wide: false }

/** Deliveries are numbered by the milliseconds of their ids. */
const idAt = (ms: number): string => {
  const hex = ms.toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
const delivery = (ms: number, given: Partial<DeliveryAtAGlance> = {}): DeliveryAtAGlance => ({
  id: idAt(ms),
  webhookId: 'w1',
  webhook: { url: 'https://example.com/hooks' },
  eventType: 'ping',
  status: 'delivered',
  attemptCount: 1,
  nextAttemptAt: null,
  createdAt: new Date(ms).toISOString(),
  finishedAt: null,
  attempts: [],
  ...given,
})
const webhook = (given: Partial<Webhook> = {}): Webhook => ({
  id: 'w1',
  url: 'https://example.com/hooks',
  events: [],
  name: null,
  labels: {},
  deletedAt: null,
  organisationIds: [],
  projectIds: [],
  ordering: 'none',
  recovery: 'on_demand',
  missedSince: null,
  nextPingAt: null,
  recoveredAt: null,
  transport: 'push',
  clients: { waiting: 0, accessTokenName: null, remoteAddress: null },
  signing: 'token',
  headers: [],
  secret: null,
  status: 'active',
  statusReason: null,
  createdAt: '',
  updatedAt: '',
  lastDeliveryAt: null,
  health: { delivered: 1, pending: 0, rejected: 0, dropped: 0, cancelled: 0 },
  ...given,
})
const stateWith = (given: Partial<State> = {}): State => ({
  ...initialState(
    {
      id: 'v1',
      name: 'support',
      apiKey: 'key',
      permissions: ['webhooks'],
      seesAllOrganisations: true,
      organisations: [],
      expiresAt: null,
    },
    {},
    AT,
  ),
  webhooks: [webhook()],
  deliveries: [3, 2, 1].map(ago => delivery(AT - 10 + ago)),
  ...given,
})
const pressed = (state: State, ...keys: string[]) =>
  keys.reduce<ReturnType<typeof press>>((before, key) => press(before.state, key, SIZES), { state })
const look = (newest: DeliveryAtAGlance[], refreshed: DeliveryAtAGlance[] = []) => ({
  newest,
  refreshed,
  timeline: undefined,
})

test('the first step down selects the newest, and home lets the list follow again', () => {
  const { state } = pressed(stateWith(), 'down')
  assert.equal(state.deliveryId, idAt(AT - 7))
  assert.equal(pressed(state, 'down', 'down').state.deliveryId, idAt(AT - 9))
  const home = pressed(state, 'down', 'home')
  assert.equal(home.state.deliveryId, undefined)
  assert.equal(home.effect, 'look')
})

test('at the last row of a list that goes on, the next page is asked for', () => {
  assert.equal(pressed(stateWith({ more: true }), 'end').effect, 'older')
  assert.notEqual(pressed(stateWith({ more: false }), 'end').effect, 'older')
})

test('only y does what was asked about', () => {
  const asked = pressed(stateWith(), 'down', 'r').state
  assert.equal(asked.mode.kind, 'confirm')
  for (const key of ['enter', ' ', 'r', 'down', 'Y']) assert.deepEqual(pressed(asked, key), { state: asked })
  assert.equal(pressed(asked, 'n').effect, undefined)
  assert.equal(pressed(asked, 'n').state.mode.kind, 'browse')
  assert.deepEqual(pressed(asked, 'y').effect, {
    perform: { kind: 'redeliver', delivery: delivery(AT - 7) },
  })
})

test('pasted text is text where text is typed, and nothing elsewhere', () => {
  const state = stateWith()
  assert.equal(paste(state, 'dy'), state)
  const searching = paste(pressed(state, '/').state, ' example\n')
  assert.equal(searching.mode.kind === 'search' && searching.mode.text, 'example')
})

test('keys for a webhook act on the one that the selected delivery goes to, or the one selected among webhooks', () => {
  const second = webhook({ id: 'w2', url: 'https://example.org' })
  const state = stateWith({
    webhooks: [webhook(), second],
    deliveries: [delivery(AT, { webhookId: 'w2', webhook: second })],
  })
  const ofDelivery = pressed(state, 'down', 'p').state.mode
  assert.equal(
    ofDelivery.kind === 'confirm' && ofDelivery.action.kind !== 'redeliver' && ofDelivery.action.webhook.id,
    'w2',
  )
  const ofWebhook = pressed(state, 'shift-tab', 'down', 'd').state.mode
  assert.equal(
    ofWebhook.kind === 'confirm' && ofWebhook.action.kind !== 'redeliver' && ofWebhook.action.webhook.id,
    'w1',
  )
})

test('without a selection it says what to select', () => {
  assert.match(pressed(stateWith(), 'r').state.notice!.text, /Select a delivery first/)
  assert.match(pressed(stateWith(), 'p').state.notice!.text, /Select a webhook first/)
})

test('nothing else is begun while something is under way', () => {
  const busy = stateWith({ notice: { text: 'Pinging …', tone: 'busy' } })
  assert.equal(pressed(busy, 'down', 'p').state.mode.kind, 'browse')
  assert.equal(pressed(busy, 'down').state.notice?.text, 'Pinging …')
})

test('esc goes out of the story, then to the newest, then to all deliveries', () => {
  let state = pressed(stateWith({ statuses: ['delivered'] }), 'down', 'enter').state
  assert.equal(state.focus, 'details')
  state = pressed(state, 'esc').state
  assert.deepEqual([state.focus, state.deliveryId], ['deliveries', idAt(AT - 7)])
  state = pressed(state, 'esc').state
  assert.deepEqual([state.deliveryId, state.statuses], [undefined, ['delivered']])
  state = pressed(state, 'esc').state
  assert.deepEqual(state.statuses, [])
})

test('a story is scrolled within its length', () => {
  const timeline = pressed(stateWith(), 'down', 'enter').state
  assert.equal(pressed(timeline, 'end').state.scrolled, 20)
  assert.equal(pressed(timeline, 'end', 'down').state.scrolled, 20)
  assert.equal(pressed(timeline, 'end', 'pageup').state.scrolled, 11)
  assert.equal(pressed(timeline, 'up').state.scrolled, 0)
})

test('a status is shown after the other, and what is known of it at once', () => {
  const rows = [delivery(AT), delivery(AT - 1, { status: 'pending' })]
  const { state, effect } = pressed(stateWith({ deliveries: rows }), 's')
  assert.deepEqual(state.statuses, ['pending'])
  assert.deepEqual(state.deliveries, [rows[1]])
  assert.equal(effect, 'look')
  assert.deepEqual(pressed(state, 's').state.statuses, ['rejected', 'dropped'])
  assert.deepEqual(pressed(state, 'S').state.statuses, [])
})

test('a search is for an id, for its beginning, or for text in a URL or an event type', () => {
  const searched = (text: string) => selectorOf(stateWith({ search: { webhooks: '', deliveries: text } }))
  const id = '01a1fc4a-97da-763a-b109-52e3aff02ba2'
  assert.deepEqual(searched(` ${id.toUpperCase()} `), { $or: [{ id }, { eventId: id }] })
  const known = stateWith({ webhooks: [webhook({ id })], search: { webhooks: '', deliveries: id } })
  assert.deepEqual(selectorOf(known), { webhookId: id })
  assert.deepEqual(selectorOf({ ...known, webhookId: 'w2' }), { $and: [{ webhookId: 'w2' }, { webhookId: id }] })
  assert.deepEqual(searched('01a1fc4a-97'), {
    id: { $gte: '01a1fc4a-9700-0000-0000-000000000000', $lte: '01a1fc4a-97ff-ffff-ffff-ffffffffffff' },
  })
  assert.deepEqual(searched('EXAMPLE.com'), { $or: [{ webhookId: { $in: ['w1'] } }] })
  assert.deepEqual(searched('overdue'), { $or: [{ eventType: { $in: ['project_report_quarterly_overdue'] } }] })
  assert.equal(searched('nowhere'), undefined)
  assert.deepEqual(selectorOf(stateWith({ webhookId: 'w1', statuses: ['dropped'], eventType: 'ping' })), {
    webhookId: 'w1',
    status: { $in: ['dropped'] },
    eventType: 'ping',
  })
})

test('a held list stays as it is but for what becomes of its rows, and counts what is newer', () => {
  const rows = [2, 1].map(ago => delivery(AT + ago, { status: 'pending' }))
  const held = stateWith({ deliveries: rows, deliveryId: rows[1]!.id })
  const done: DeliveryAtAGlance = { ...rows[1]!, status: 'delivered' }
  const after = afterLook(held, look([delivery(AT + 9), rows[0]!], [done]), AT + 10)
  assert.deepEqual(after.deliveries, [rows[0], done])
  assert.equal(after.newer, 1)
  const following = afterLook({ ...held, deliveryId: undefined }, look([delivery(AT + 9)]), AT + 10)
  assert.deepEqual(following.deliveries, [delivery(AT + 9)])
})

test('a row tells the last attempt, also where its story is what is newest', () => {
  const attempt = { startedAt: '', durationMs: 1, failure: null, failureDetail: null, response: null, retryAfter: null }
  const row = delivery(AT, { status: 'pending' })
  const attempts = [500, 503].map((statusCode, index) => ({ ...attempt, number: index + 1, statusCode }))
  const timeline: Delivery = { ...row, webhook: null, event: null, attempts }
  const after = afterLook(
    stateWith({ deliveries: [row], deliveryId: row.id }),
    { ...look([row]), timeline: { id: timeline.id, delivery: timeline } },
    AT,
  )
  assert.equal(describeState(after.deliveries![0]!, AT), '503')
  assert.equal(describeState(selectedDelivery({ ...after, deliveries: [] })!, AT), '503')
})

test('a story that is not there is said to be, unless another one was asked for', () => {
  const state = stateWith({ deliveryId: idAt(AT) })
  const asked = (id: string) => afterLook(state, { ...look([]), timeline: { id, delivery: null } }, AT).timeline
  assert.equal(asked(idAt(AT)), null)
  assert.equal(asked(idAt(AT - 1)), undefined)
})

test('the rate is told from one page, however fast they come, and ends when they do', () => {
  const fast = Array.from({ length: 100 }, (_, ago) => delivery(AT - ago))
  let state = afterLook(stateWith({ deliveries: undefined }), look(fast), AT)
  assert.ok(Math.abs(state.perSecond - 1000) < 20, String(state.perSecond))
  state = afterLook(state, look(fast), AT + 20_000)
  assert.equal(state.perSecond, 0)
  const slow = [0, 2, 4, 6, 8, 10, 12].map(secondsAgo => delivery(AT - secondsAgo * 1000))
  assert.equal(afterLook(stateWith({ deliveries: undefined }), look(slow), AT).perSecond, 0.5)
})

test('a list keeps no more rows than it says, however far one goes back', () => {
  let state = stateWith({ deliveries: [delivery(AT)], more: true })
  for (let page = 0; page < 30; page++) {
    state = afterOlder(
      state,
      Array.from({ length: 100 }, (_, row) => delivery(AT - 1 - page * 100 - row)),
    )
  }
  assert.equal(state.deliveries!.length, MOST_ROWS)
  assert.equal(state.more, false)
})
