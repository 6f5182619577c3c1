import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { pathOf } from '../../cli/help/tree.ts'
import { wholeProgram } from '../../cli/main.ts'
import { dateAndTime, relativeIso, relativeTime, timeOfDay, zoneAt, zoneName } from '../../cli/output/time.ts'
import { parseDuration, parseTime } from '../../cli/times.ts'
import { moment } from '../../cli/why/words.ts'
import { toIso } from '../../shared/time.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

process.env.TZ = 'Europe/Berlin'

/** A Monday, 10:30 in Berlin. */
const NOW = Date.parse('2026-11-23T09:30:00Z')

test('a time is read in every form in which people write it or Tidings prints it', () => {
  const forms: [text: string, utc: string][] = [
    ['2026-11-21T00:40:01.123+00:00', '2026-11-21T00:40:01.123'],
    ['2026-11-21T02:40:01+02:00', '2026-11-21T00:40:01.000'],
    ['2026-11-21', '2026-11-20T23:00:00.000'],
    ['2026-11-21 10:00', '2026-11-21T09:00:00.000'],
    ['2026-11-21T10:00', '2026-11-21T09:00:00.000'],
    ['2026-11-21 02:40:01', '2026-11-21T01:40:01.000'],
    ['2026-11-21 02:40:01 UTC+02:00', '2026-11-21T00:40:01.000'],
    ['2026-11-21 02:40:01 UTC', '2026-11-21T02:40:01.000'],
    ['2026-07-01', '2026-06-30T22:00:00.000'],
    ['2026-07', '2026-06-30T22:00:00.000'],
    ['2026-11-20 02:40:01 UTC+02:00 (3 d ago)', '2026-11-20T00:40:01.000'],
    ['2026-11-23 10:29:59 UTC+01:00 (now)', '2026-11-23T09:29:59.000'],
    ['2026-11-23 10:30:20 UTC+01:00 (in 20 s)', '2026-11-23T09:30:20.000'],
    ['2026-11-20T00:40:01.123+00:00  3 d ago', '2026-11-20T00:40:01.123'],
    ['10:00', '2026-11-23T09:00:00.000'],
    ['11:00', '2026-11-22T10:00:00.000'],
    ['9:15:30 UTC', '2026-11-23T09:15:30.000'],
    ['today', '2026-11-22T23:00:00.000'],
    ['yesterday', '2026-11-21T23:00:00.000'],
    ['yesterday 10:00', '2026-11-22T09:00:00.000'],
    ['now', '2026-11-23T09:30:00.000'],
    ['90s', '2026-11-23T09:28:30.000'],
    ['1h30m', '2026-11-23T08:00:00.000'],
    ['1w', '2026-11-16T09:30:00.000'],
    ['3 min ago', '2026-11-23T09:27:00.000'],
    ['2 h 5 min', '2026-11-23T07:25:00.000'],
    ['in 20 s', '2026-11-23T09:30:20.000'],
  ]
  for (const [text, utc] of forms) {
    const ms = parseTime(text, NOW)
    assert.equal(ms === undefined ? ms : toIso(ms), `${utc}+00:00`, text)
  }
})

test('what is no time is none', () => {
  const distances = ['(3 d ago)', '2026-11-21 (soon)', 'yesterday (3 d ago)', '2026-13']
  for (const text of [
    ...distances,
    '',
    'soon',
    '2026-02-30',
    '25:00',
    '10:61',
    '1x',
    '1h and',
    '2026-11-21 10',
    'h',
    'tomorrow',
  ]) {
    assert.equal(parseTime(text, NOW), undefined, text)
  }
  assert.equal(parseDuration('1h 30'), undefined)
})

test('every form of a time that show, list and why print for people is read as that time', () => {
  for (const zone of ['Europe/Berlin', 'UTC', 'America/St_Johns', 'Asia/Kathmandu', 'Pacific/Kiritimati']) {
    process.env.TZ = zone
    for (const distanceMs of [0, 999, 1_000, 59_999, 3_599_000, 86_399_000, 86_400_000, 40 * 86_400_000, -20_000]) {
      const ms = NOW - distanceMs
      const second = Math.floor(ms / 1000) * 1000
      const [written, at] = [dateAndTime(ms), zoneAt(ms)]
      const forms: [text: string, ms: number, withinMs: number][] = [
        [toIso(ms), ms, 0],
        [`${toIso(ms)}  ${relativeIso(toIso(ms), NOW)}`, ms, 0],
        [moment(toIso(ms), NOW), second, 0],
        [written, second, 0],
        [`${written} ${zoneName(at)}`, second, 0],
        [`${written}  ${relativeTime(ms, NOW)}`, second, 0],
        [relativeTime(ms, NOW), ms, Math.max(1_000, Math.abs(distanceMs) / 2)],
        ...(distanceMs >= 0 && distanceMs < 86_400_000 ? [[timeOfDay(ms), second, 0] as [string, number, number]] : []),
      ]
      for (const [text, expected, withinMs] of forms) {
        const read = parseTime(text, NOW)
        assert.ok(read !== undefined && Math.abs(read - expected) <= withinMs, `${zone}: “${text}” is ${read}`)
      }
    }
  }
  process.env.TZ = 'Europe/Berlin'
})

test('a time of the night in which the clocks change is read in the zone of this machine', () => {
  const after = Date.parse('2026-10-26T09:00:00Z')
  const forms: [text: string, nowMs: number, utc: string][] = [
    // There is no 02:30 on 29 March, and there are two on 25 October.
    ['2026-03-29 02:30', after, '2026-03-29T01:30:00.000'],
    ['2026-03-29 03:30', after, '2026-03-29T01:30:00.000'],
    ['2026-10-25 02:30', after, '2026-10-25T00:30:00.000'],
    ['2026-10-25 02:30:00 UTC+02:00', after, '2026-10-25T00:30:00.000'],
    ['2026-10-25 02:30:00 UTC+01:00 (1 d ago)', after, '2026-10-25T01:30:00.000'],
    // Days of 23 and 25 hours.
    ['yesterday', after, '2026-10-24T22:00:00.000'],
    ['today', after, '2026-10-25T23:00:00.000'],
    ['yesterday 10:00', after, '2026-10-25T09:00:00.000'],
    ['yesterday', Date.parse('2026-03-30T08:00:00Z'), '2026-03-28T23:00:00.000'],
    ['yesterday 10:00', Date.parse('2026-03-30T08:00:00Z'), '2026-03-29T08:00:00.000'],
    ['10:00', Date.parse('2026-03-29T07:59:00Z'), '2026-03-28T09:00:00.000'],
    // So long ago is so many hours, whatever the clocks showed.
    ['1d', after, '2026-10-25T09:00:00.000'],
  ]
  for (const [text, nowMs, utc] of forms) {
    const ms = parseTime(text, nowMs)
    assert.equal(ms === undefined ? ms : toIso(ms), `${utc}+00:00`, text)
  }
})

test('every command that takes --since takes --until beside it, and says the same of both', async () => {
  const withSince: string[] = []
  const walk = (command: CommandUnknownOpts): void => {
    const taken = new Map(command.options.map(option => [option.long, option]))
    const [since, until] = [taken.get('--since'), taken.get('--until')]
    assert.equal(since === undefined, until === undefined, pathOf(command))
    if (since && until) {
      withSince.push(pathOf(command))
      assert.match(since.description, /since a time or so long ago: .*10:00, yesterday/)
      assert.match(until.description, /until then, in the same forms/)
    }
    command.commands.forEach(walk)
  }
  walk(await wholeProgram())
  for (const name of ['why', 'stats', 'deliveries list', 'deliveries redeliver', 'events list', 'webhooks recover']) {
    assert.ok(withSince.includes(`tidings ${name}`), name)
  }
})

test('list, watch and redeliver of deliveries take the same filters, and several statuses', async () => {
  const program = await wholeProgram()
  const deliveries = program.commands.find(command => command.name() === 'deliveries')!
  for (const name of ['list', 'watch', 'redeliver']) {
    const command = deliveries.commands.find(each => each.name() === name)!
    const taken = command.options.map(({ long }) => long)
    for (const flag of ['--webhook', '--status', '--type', '--organisation', '--project', '--selector']) {
      assert.ok(taken.includes(flag), `${name} ${flag}`)
    }
    const status = command.options.find(({ long }) => long === '--status')!
    const read = (value: string, before?: string[]) => status.parseArg!(value, before as never) as unknown as string[]
    assert.deepEqual(read('dropped', read('rejected,cancelled')), ['rejected', 'cancelled', 'dropped'])
  }
})

const home = temporaryFolder()
const [WEBHOOK, ORGANISATION, PROJECT] = ['1', '2', '3'].map(digit => `00000000-0000-4000-8000-00000000000${digit}`)
const stub = await startStubServer(({ query }) => ({
  data: { rows: query.includes('eventType') ? [] : [{ id: '1' }] },
}))
const run = (...args: string[]) => tidings(args, { home, env: { ...connectedTo(stub), TZ: 'Europe/Berlin' } })

test('deliveries are listed by several statuses, by type, organisation, project and a span of time', async () => {
  const { code, stderr } = await run(
    ...['deliveries', 'list', '--webhook', WEBHOOK!, '--status', 'rejected,dropped', '--type', 'token_expired'],
    ...['--organisation', ORGANISATION!, '--project', PROJECT!, '--since', '2026-11-20', '--until', '2026-11-21 10:00'],
    ...['--selector', '{"attemptCount":1}'],
  )
  assert.equal(code, 0, stderr)
  assert.deepEqual((stub.received.at(-1)!.variables as { query: { selector: unknown } }).query.selector, {
    $and: [
      { webhookId: WEBHOOK },
      { status: { $in: ['rejected', 'dropped'] } },
      { eventType: 'token_expired' },
      { 'event.organisationId': ORGANISATION },
      { 'event.projectId': PROJECT },
      { createdAt: { $gte: '2026-11-19T23:00:00.000+00:00' } },
      { createdAt: { $lte: '2026-11-21T09:00:00.000+00:00' } },
      { attemptCount: 1 },
    ],
  })
})

test('the former --event-type is still --type', async () => {
  await run('deliveries', 'list', '--event-type', 'ping')
  const { selector } = (stub.received.at(-1)!.variables as { query: { selector: unknown } }).query
  assert.deepEqual(selector, { eventType: 'ping' })
})

test('a person is told the span that was understood, with its zone; a program is not', async () => {
  const line = ['events', 'list', '--since', '2026-11-20 10:00', '--until', '2026-11-21']
  const told = await run(...line, '--output', 'table')
  assert.match(told.stderr, /Since 2026-11-20 10:00:00 UTC\+01:00, until 2026-11-21 00:00:00 UTC\+01:00\./)
  assert.doesNotMatch((await run(...line, '--output', 'json')).stderr, /UTC\+01:00/)
})

test('a span may end when it begins', async () => {
  const { code, stderr } = await run('events', 'list', '--since', '2026-11-20', '--until', '2026-11-20')
  assert.equal(code, 0, stderr)
})

test('a span that ends before it begins is wrong usage', async () => {
  const { code, stderr } = await run('deliveries', 'list', '--since', '1h', '--until', '2h')
  assert.equal(code, 2)
  assert.match(stderr, /--since 1h is later than --until 2h/)
})
