import assert from 'node:assert/strict'
import { test } from 'node:test'
import { stripVTControlCharacters } from 'node:util'
import pc from 'picocolors'
import { displayWidth } from '../../cli/output/table.ts'
import type { Delivery } from '../../cli/resources/timeline.ts'
import type { Webhook } from '../../cli/resources/webhook.ts'
import { deliveriesPane } from '../../cli/screens/dashboard/deliveries-pane.ts'
import { detailsLines, detailsPane } from '../../cli/screens/dashboard/details-pane.ts'
import { footerLines, headerLine, helpLines, noticeLines } from '../../cli/screens/dashboard/frame.ts'
import { layoutOf } from '../../cli/screens/dashboard/layout.ts'
import { rowOf, wrapLine } from '../../cli/screens/dashboard/lines.ts'
import { screenColours } from '../../cli/screens/dashboard/palette.ts'
import { initialState, type State } from '../../cli/screens/dashboard/state.ts'
import { webhooksPane } from '../../cli/screens/dashboard/webhooks-pane.ts'
import { webhookStatuses } from '../../shared/vocabulary.ts'
import { atFullSize } from '../support/size.ts'

const NOW = Date.parse('2026-11-21T00:40:00Z')
const colours = screenColours(true)

const timeline: Delivery = {
  id: '01a1fc4a-97da-763a-b109-52e3aff02ba2',
  webhookId: '01a1fc4a-97da-763a-b109-52e3aff02ba3',
  webhook: {
    id: '01a1fc4a-97da-763a-b109-52e3aff02ba3',
    url: `https://例え.example.com/${'a-long-path/'.repeat(12)}`,
    status: 'active',
    statusReason: null,
  },
  eventType: 'project_report_quarterly_submitted',
  event: { id: 'e1', payload: { projectReport: { submitterName: 'Ada '.repeat(40) } } },
  status: 'pending',
  attemptCount: 1,
  nextAttemptAt: '2026-11-21T00:40:12.000+00:00',
  createdAt: '2026-11-21T00:39:50.000+00:00',
  finishedAt: null,
  attempts: [
    {
      number: 1,
      startedAt: '2026-11-21T00:39:50.000+00:00',
      durationMs: 15_000,
      statusCode: null,
      failure: 'connection_refused',
      failureDetail: 'nothing listens at 203.0.113.7:443',
      response: 'x'.repeat(1024),
      retryAfter: null,
    },
  ],
}
const webhooks = Array.from(
  { length: 12 },
  (_, number): Webhook => ({
    id: `w${number}`,
    url: `https://${'host-'.repeat(number * 3)}.example.com/受け取り/${number}`,
    events: ['ping'],
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
    status: webhookStatuses[number % 3]!,
    statusReason: 'It answered 429 without a Retry-After.',
    createdAt: '2026-11-21T00:30:00.000+00:00',
    updatedAt: '2026-11-21T00:30:00.000+00:00',
    lastDeliveryAt: '2026-11-21T00:30:00.000+00:00',
    health: { pending: 12_345 * number, delivered: 3_456_789, rejected: number, dropped: 999, cancelled: 0 },
  }),
)
const stateWith = (given: Partial<State> = {}): State => ({
  ...initialState(
    {
      id: 'v1',
      name: 'support 受け取り '.repeat(4),
      apiKey: 'key',
      permissions: ['read'],
      seesAllOrganisations: true,
      organisations: [],
      expiresAt: null,
    },
    {},
    NOW,
  ),
  webhooks,
  lastDay: new Map(webhooks.map(({ id }, n) => [id, Array.from({ length: 24 }, (_, hour) => hour * n)])),
  deliveries: Array.from({ length: 80 }, () => timeline),
  deliveryId: timeline.id,
  timeline,
  perSecond: 1234.5,
  newer: 100,
  newerAtLeast: true,
  ...given,
})

test('no line is wider than its place, nor a pane higher, in a terminal of any size', () => {
  const place = { url: 'https://tidings.example.com/behind/a/path', profile: 'production' }
  const states: State[] = [
    stateWith(),
    stateWith({
      webhookId: 'w3',
      detailsOf: 'webhooks',
      focus: 'details',
      link: { kind: 'away', message: 'gone '.repeat(40) },
    }),
    stateWith({ deliveries: [], webhooks: [], search: { webhooks: 'some', deliveries: 'thing '.repeat(30) } }),
    stateWith({ mode: { kind: 'confirm', action: { kind: 'redeliver', delivery: timeline } } }),
  ]
  for (const state of states) {
    for (let columns = 60; columns <= 210; columns += atFullSize(7, 21)) {
      for (const rows of [15, 24, 60]) {
        const bottom = [...noticeLines(state, columns, colours), ...footerLines(state, columns, colours)]
        const layout = layoutOf({ columns, rows }, state, bottom.length)
        const lists = [...webhooksPane(state, layout, colours), ...deliveriesPane(state, layout, colours)]
        const details = detailsPane(state, detailsLines(state, layout, colours), layout, colours)
        const fits = (lines: string[], width: number) => {
          for (const line of lines)
            assert.ok(displayWidth(line) <= width, `${columns}: ${displayWidth(line)} > ${width}: ${line}`)
        }
        fits([headerLine(state, place, columns, colours), ...bottom, ...helpLines(state, columns, colours)], columns)
        assert.ok(helpLines(state, columns, colours).length + 2 <= rows)
        fits(lists, layout.listsWidth)
        fits(details, layout.detailsWidth)
        assert.equal(lists.length + bottom.length + 1, rows, `${columns}×${rows}`)
        assert.equal(details.length + bottom.length + 1, rows)
      }
    }
  }
})

test('a terminal of 80 columns or more shows the last day of each webhook as a line', () => {
  for (const columns of [80, 91, 120, 160, 210]) {
    const state = stateWith()
    const layout = layoutOf({ columns, rows: 40 }, state, 1)
    const [, head, ...rows] = webhooksPane(state, layout, colours).map(line => stripVTControlCharacters(line))
    const at = head!.indexOf('LAST DAY')
    assert.ok(at > 0, `${columns}: ${head}`)
    const day = [...rows.find(row => row.includes('host-'))!].slice(at, at + 24).join('')
    assert.match(day, /^ ?▁?[▁▂▃▄▅▆▇]+█/, `${columns}: ${day}`)
  }
})

test('a wrapped line loses nothing, goes on under its beginning, and closes its colours at each break', () => {
  const text = `Webhook  ${colours.red('the quick brown fox jumps over the lazy dog')} and ${'x'.repeat(50)}`
  const lines = wrapLine(text, 24, 9)
  assert.ok(lines.length > 4)
  for (const line of lines.slice(1)) assert.match(stripVTControlCharacters(line), /^ {9}\S/)
  const bare = lines.map(line => stripVTControlCharacters(line).trim())
  assert.equal(bare.join('').replaceAll(' ', ''), `Webhookthequickbrownfoxjumpsoverthelazydogand${'x'.repeat(50)}`)
  const red = lines.filter(line => line.includes('\x1b[38;5;160m'))
  assert.equal(red.length, 3)
  for (const line of red) assert.ok(line.lastIndexOf('39m') > line.indexOf('160m'))
})

test('cells are as wide as they say, whatever is in them', () => {
  for (const text of ['', 'short', 'much longer than that', '受け取り受け取り', 'e\u0301'.repeat(12)]) {
    for (const shrinks of ['start', 'middle', 'end'] as const) {
      assert.equal(
        displayWidth(
          rowOf([
            { text, width: 9, shrinks },
            { text: 'x', width: 3, align: 'right' },
          ]),
        ),
        14,
        text,
      )
    }
  }
  assert.equal(rowOf([{ text: 'example.com/hooks/customer', width: 13, shrinks: 'middle' }]), 'exampl…stomer')
})

test('colours can be read on black and on white', () => {
  for (const colour of ['green', 'yellow', 'red'] as const) {
    const number = Number(/38;5;(\d+)m/.exec(colours[colour]('x'))![1])
    const light = luminance(number)
    for (const background of [0, 1]) {
      const contrast = (Math.max(light, background) + 0.05) / (Math.min(light, background) + 0.05)
      assert.ok(contrast >= 3.8, `${colour} on ${background}: ${contrast}`)
    }
  }
  assert.equal(screenColours(false).red('x'), pc.createColors(false).red('x'))
})

/** Relative luminance (WCAG 2.2) of one of the 216 colours of the cube from 16 on. */
const luminance = (number: number): number => {
  const level = (digit: number) => (digit === 0 ? 0 : 55 + 40 * digit) / 255
  const linear = (value: number) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  const cube = number - 16
  const [red, green, blue] = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map(digit =>
    linear(level(digit)),
  )
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!
}
