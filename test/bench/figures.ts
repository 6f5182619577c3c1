import { createHash } from 'node:crypto'
import { stripVTControlCharacters } from 'node:util'

export const ascending = (values: number[]): number[] => values.toSorted((a, b) => a - b)

/** NaN for an empty list. */
export const quantile = (values: number[], part: number): number =>
  values.length === 0 ? Number.NaN : ascending(values)[Math.min(values.length - 1, Math.floor(part * values.length))]!

export const median = (values: number[]): number => quantile(values, 0.5)

/** Three significant digits. */
export const show = (value: number | undefined): string => {
  if (value === undefined || Number.isNaN(value)) return '—'
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2
  return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
}

/** Lines of columns: the first to the left, the others to the right. */
export const table = (rows: string[][], { textColumns = 1 }: { textColumns?: number } = {}): string => {
  const width = (text: string): number => stripVTControlCharacters(text).length
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map(row => width(row[column] ?? ''))))
  return rows
    .map(row =>
      row
        .map((text, column) => {
          const space = ' '.repeat(widths[column]! - width(text))
          return column < textColumns ? text + space : space + text
        })
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

const SAMPLE = JSON.stringify(
  Array.from({ length: 200 }, (_, n) => ({ id: `row ${n}`, at: n * 1e6, text: 'x'.repeat(n) })),
)

/** CPU milliseconds of a constant workload, which show how much other load increases CPU times. */
export const fixedWorkMs = (): number => {
  const before = process.cpuUsage()
  for (let n = 0; n < 40; n++)
    createHash('sha256')
      .update(JSON.stringify(JSON.parse(SAMPLE)))
      .digest()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}
