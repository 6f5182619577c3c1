import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Column, displayWidth, renderTable } from '../../cli/output/table.ts'

const lines = (columns: Column[], rows: string[][], width?: number) =>
  renderTable(columns, rows, { width }).trimEnd().split('\n')

test('columns stay aligned beside names in wide characters, with accents and in colour', () => {
  const names = ['水の財団', 'Ame\u0301lie', '\u001b[32mgreen\u001b[39m', '👩‍👩‍👧', 'plain']
  const rendered = lines(
    [{ title: 'NAME' }, { title: 'STATUS' }],
    names.map(name => [name, 'x']),
  )
  for (const line of rendered.slice(1)) assert.equal(displayWidth(line.slice(0, line.lastIndexOf('x'))), 10)
})

test('a table that is too wide is cut where it may be, at the end that may be cut', () => {
  const columns: Column[] = [{ title: 'ID' }, { title: 'URL', shrinks: 'end' }, { title: 'EVENT', shrinks: 'start' }]
  const row = ['0193', 'https://example.com/a/long/path/that/goes/on', 'project_report_quarterly_submitted']
  const [, line] = lines(columns, [row], 70)
  assert.equal(displayWidth(line!), 70)
  assert.match(line!, /^0193 {2}https:\/\/example.*… {2}….*quarterly_submitted$/)
})

test('optional columns are left out, the last one first, before anything else becomes unreadable', () => {
  const columns: Column[] = [
    { title: 'ID' },
    { title: 'A', optional: true },
    { title: 'B', optional: true },
    { title: 'C' },
  ]
  const row = ['1'.repeat(50), 'a'.repeat(10), 'b'.repeat(10), 'c'.repeat(10)]
  assert.deepEqual(lines(columns, [row], 75)[0]!.split(/ +/), ['ID', 'A', 'C'])
  assert.deepEqual(lines(columns, [row], 65)[0]!.split(/ +/), ['ID', 'C'])
  assert.deepEqual(lines(columns, [row])[0]!.split(/ +/), ['ID', 'A', 'B', 'C'])
})

test('numbers stand at the right', () => {
  assert.deepEqual(lines([{ title: 'ATTEMPTS', align: 'right' }], [['7'], ['11']]), [
    'ATTEMPTS',
    '       7',
    '      11',
  ])
})
