import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseDuration, parseTime } from '../../cli/times.ts'
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
  for (const text of ['', 'soon', '2026-02-30', '25:00', '10:61', '1x', '1h and', '2026-11-21 10', 'h', 'tomorrow']) {
    assert.equal(parseTime(text, NOW), undefined, text)
  }
  assert.equal(parseDuration('1h 30'), undefined)
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

test('a span that ends before it begins is wrong usage', async () => {
  const { code, stderr } = await run('deliveries', 'list', '--since', '1h', '--until', '2h')
  assert.equal(code, 2)
  assert.match(stderr, /--since 1h is later than --until 2h/)
})
