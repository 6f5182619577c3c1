import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Csv } from '../../cli/output/csv.ts'
import { dateAndTime } from '../../cli/output/time.ts'
import { percentiles, spansOf } from '../../cli/resources/statistics.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

process.env.TZ = 'Europe/Berlin'
const home = temporaryFolder()
const answer = (createdAt: string, durationMs: number) => ({ createdAt, attempts: [{ durationMs, statusCode: 200 }] })
const stub = await startStubServer(() => ({
  data: {
    counts: [
      { key: { 'createdAt:hour@Europe/Berlin': '2026-11-21T10:00:00.000+01:00', status: 'delivered' }, count: 90 },
      { key: { 'createdAt:hour@Europe/Berlin': '2026-11-21T10:00:00.000+01:00', status: 'dropped' }, count: 10 },
    ],
    p0: [answer('2026-11-21T09:10:00.000+00:00', 20), answer('2026-11-21T09:20:00.000+00:00', 400)],
  },
}))
const run = (...args: string[]) =>
  tidings(['stats', '--since', '2026-11-21 09:30', '--until', '2026-11-21 12:30', ...args], {
    home,
    env: { ...connectedTo(stub), TZ: 'Europe/Berlin' },
  })

test('stats draws a line for each hour, those without deliveries too', async () => {
  const { code, stdout, stderr } = await run('--output', 'table')
  assert.equal(code, 0, stderr)
  const lines = stdout.split('\n')
  assert.match(lines[0]!, /^100 deliveries, 10 failed, p50 20 ms {2}p95 400 ms {2}by hour, Europe\/Berlin$/)
  assert.deepEqual(
    lines.slice(2, 6).map(line => line.slice(0, 16)),
    ['2026-11-21 09:00', '2026-11-21 10:00', '2026-11-21 11:00', '2026-11-21 12:00'],
  )
  assert.match(lines[3]!, /█{45}▒{5} +100 {2}10 failed {2}p50 20 ms {2}p95 400 ms/)
  assert.match(lines[4]!, / 0$/)
})

test('stats of a time with an end alone are of the day before it', async () => {
  const { stdout } = await tidings(['stats', '--until', '2026-11-20 12:00', '--output', 'json'], {
    home,
    env: { ...connectedTo(stub), TZ: 'Europe/Berlin' },
  })
  const { since, until } = JSON.parse(stdout)
  assert.deepEqual([since, until], ['2026-11-19T11:00:00.000+00:00', '2026-11-20T11:00:00.000+00:00'])
})

test('stats has the numbers as JSON, and a line for each span as CSV', async () => {
  const { deliveries, failed, spans } = JSON.parse((await run('--output', 'json')).stdout)
  assert.deepEqual([deliveries, failed, spans.length], [100, 10, 4])
  const csv = (await run('--output', 'csv')).stdout.split('\n')
  assert.equal(csv[0], 'id,deliveries,failed,pending,delivered,rejected,dropped,cancelled,p50Ms,p95Ms')
  assert.equal(csv[2], '2026-11-21T09:00:00.000+00:00,100,10,0,90,0,10,0,20,400')
})

test('a day of a change of the clocks has 25 hours', () => {
  const [fromMs, toMs] = [Date.parse('2026-10-24T22:00:00Z'), Date.parse('2026-10-25T22:59:59Z')]
  const spans = spansOf({ counted: [], answers: [], unit: 'hour', fromMs, toMs })
  assert.equal(spans.length, 25)
  assert.equal(spansOf({ counted: [], answers: [], unit: 'day', fromMs, toMs }).length, 1)
})

test('a night in which the clocks change has the hours that the calendar of its zone has', () => {
  const hours = (zone: string, from: string, to: string): string[] => {
    process.env.TZ = zone
    const [fromMs, toMs] = [Date.parse(from), Date.parse(to)]
    const spans = spansOf({ counted: [], answers: [], unit: 'hour', fromMs, toMs })
    return spans.map(({ id }) => dateAndTime(Date.parse(id)).slice(11, 16))
  }
  assert.deepEqual(hours('Europe/Berlin', '2026-03-28T23:30Z', '2026-03-29T02:30Z'), [
    '00:00',
    '01:00',
    '03:00',
    '04:00',
  ])
  assert.deepEqual(hours('Europe/Berlin', '2026-10-24T23:30Z', '2026-10-25T01:59Z'), ['01:00', '02:00', '02:00'])
  assert.deepEqual(hours('Australia/Lord_Howe', '2026-04-04T13:30Z', '2026-04-04T16:40Z'), [
    '00:00',
    '01:00',
    '01:30',
    '02:00',
    '03:00',
  ])
  assert.deepEqual(hours('Australia/Lord_Howe', '2026-10-03T14:40Z', '2026-10-03T16:30Z'), ['01:00', '02:30', '03:00'])
  process.env.TZ = 'Europe/Berlin'
})

test('percentiles are of answers alone', () => {
  assert.deepEqual(percentiles([]), { p50Ms: null, p95Ms: null })
  assert.deepEqual(percentiles([{ createdAt: '', attempts: [{ durationMs: 9, statusCode: null }] }]), {
    p50Ms: null,
    p95Ms: null,
  })
})

test('CSV has one header, quotes what has to be quoted, and begins no formula', () => {
  const csv = new Csv()
  const first = csv.lines([
    { id: 'a', webhook: null, note: 'x "y", z' },
    { id: 'b', webhook: { url: 'https://b.example', name: null }, note: '=HYPERLINK("x")' },
  ])
  assert.equal(
    first,
    'id,note,webhook.url,webhook.name\na,"x ""y"", z",,\nb,"\'=HYPERLINK(""x"")",https://b.example,\n',
  )
  assert.equal(csv.lines([{ note: [1], id: 'c', webhook: null }]), 'c,[1],,\n')
})
