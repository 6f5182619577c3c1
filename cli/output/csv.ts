/** Writes objects as CSV (RFC 4180) with one header; the fields of the first rows are its columns. */
export class Csv {
  #columns: string[] | undefined

  /** The lines of some rows; the first ones come after the header. */
  lines(rows: readonly object[]): string {
    const flat = rows.map(flattened)
    const isFirst = this.#columns === undefined && rows.length > 0
    if (isFirst) this.#columns = columnsOf(flat)
    const columns = this.#columns ?? []
    const table = flat.map(row => columns.map(name => cell(row.get(name))))
    return (isFirst ? [columns.map(cell), ...table] : table).map(cells => `${cells.join(',')}\n`).join('')
  }
}

/** Related objects become columns with a dot in their name. */
const flattened = (row: object): Map<string, unknown> =>
  new Map(
    Object.entries(row).flatMap(([name, value]): [string, unknown][] =>
      typeof value === 'object' && value !== null && !Array.isArray(value)
        ? Object.entries(value).map(([inner, found]) => [`${name}.${inner}`, found])
        : [[name, value]],
    ),
  )

/** A relation that the first row does not have may be in another. */
const columnsOf = (rows: Map<string, unknown>[]): string[] => {
  const names = [...new Set(rows.flatMap(row => [...row.keys()]))]
  return names.filter(name => !names.some(other => other.startsWith(`${name}.`)))
}

const cell = (value: unknown): string => {
  if (value === null || value === undefined) return ''
  const text =
    typeof value === 'string'
      ? withoutFormula(value)
      : typeof value === 'object'
        ? JSON.stringify(value)
        : String(value)
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** A spreadsheet would run what begins like a formula, and others choose the texts. */
const withoutFormula = (text: string): string => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text)
