import type { Engine } from './resource.ts'

/** A piece of SQL with the values for its `?`. */
export type Sql = { sql: string; bindings: (string | number)[] }

/** What the plan says differently on different engines. */
export type MangoDialect = {
  /** A text to compare a column with. */
  text(value: string): Sql
  /** Whether a column's text contains another. */
  contains(column: string, part: string): Sql
  /**
   * `contains` for an ASCII part in lower case, whatever the case of the column's. Too much is found, never too little.
   */
  containsIgnoringCase(column: string, part: string): Sql
  /** Whether a column's text matches a gist, on an engine that has regular expressions. */
  matches?(column: string, gist: string): Sql
  explain: string
  /** The indexes that one row of EXPLAIN's answer names. */
  indexes(row: Record<string, unknown>): string[]
}

/**
 * Two letters beyond ASCII are the same as an ASCII letter to
 * `(?i)`, the Kelvin sign and the long s: LOWER may not say so.
 */
const lowered = (column: string, part: string, contains: Contains): Sql => {
  const others = [part.includes('k') ? '\u212a' : '', part.includes('s') ? '\u017f' : ''].filter(
    letter => letter !== '',
  )
  const sql: Sql = { sql: `INSTR(LOWER(${column}), ?) > 0`, bindings: [part] }
  return either([sql, ...others.map(letter => contains(column, letter))])
}

type Contains = MangoDialect['contains']

const mysqlFamily = ({
  collation,
  explain,
  ignoringCase,
  matches,
}: {
  collation: string
  explain: string
  ignoringCase: (column: string, part: string, contains: Contains) => Sql
  matches: (column: string) => string
}): MangoDialect => {
  // Some columns are `ascii`, where MySQL refuses other characters and pads with spaces. Told to compare as the other
  // columns do, it does neither, and those can still use their index. It is told only where it matters, since an
  // `ascii` column cannot.
  const text = (value: string): Sql => ({
    sql: isPlain(value) ? '?' : `? COLLATE ${collation}`,
    bindings: [value],
  })
  const contains: Contains = (column, part) => ({
    sql: isPlain(part)
      ? `INSTR(${column}, ?) > 0`
      : `INSTR(CONVERT(${column} USING utf8mb4) COLLATE ${collation}, ?) > 0`,
    bindings: [part],
  })
  return {
    text,
    contains,
    containsIgnoringCase: (column, part) => ignoringCase(column, part, contains),
    matches: (column, gist) => ({ sql: matches(column), bindings: [gist] }),
    explain,
    indexes: ({ table, key }) => (key ? [`${table}.${key}`] : []),
  }
}

const sqliteContains = (column: string, part: string): Sql => ({ sql: `INSTR(${column}, ?) > 0`, bindings: [part] })

export const mangoDialects: Record<Engine, MangoDialect> = {
  mysql: mysqlFamily({
    collation: 'utf8mb4_0900_bin',
    explain: 'EXPLAIN FORMAT=TRADITIONAL ',
    ignoringCase: lowered,
    matches: column => `REGEXP_LIKE(${column}, ?, 'c')`,
  }),
  mariadb: mysqlFamily({
    collation: 'utf8mb4_nopad_bin',
    explain: 'EXPLAIN ',
    // Half the time of LOWER; a pattern that is one literal cannot backtrack.
    ignoringCase: (column, part) => ({
      sql: `${column} REGEXP ?`,
      bindings: [`(?i)${part.replaceAll(/[^\w ]/g, '\\$&')}`],
    }),
    matches: column => `${column} REGEXP ?`,
  }),
  sqlite: {
    text: value => ({ sql: '?', bindings: [value] }),
    contains: sqliteContains,
    containsIgnoringCase: (column, part) => lowered(column, part, sqliteContains),
    explain: 'EXPLAIN QUERY PLAN ',
    indexes: ({ detail }) => {
      const found = /(?:SEARCH|SCAN) (\S+) USING (?:COVERING )?INDEX (\S+)/.exec(String(detail))
      return found ? [`${found[1]}.${found[2]}`] : []
    },
  },
}

/** Printable ASCII that neither begins nor ends with a space. */
const isPlain = (text: string): boolean => /^[!-~](?:[ -~]*[!-~])?$/.test(text)

export const either = (parts: Sql[]): Sql => joined(parts, ' OR ')
export const all = (parts: Sql[]): Sql => joined(parts, ' AND ')

const joined = (parts: Sql[], word: string): Sql =>
  parts.length === 1
    ? parts[0]!
    : { sql: `(${parts.map(part => part.sql).join(word)})`, bindings: parts.flatMap(part => part.bindings) }

/** `template` with `parts` in its places, in order: SQL in the place of each `#`, values for each `?`. */
export const sql = (template: string, ...parts: (Sql | string | number)[]): Sql => {
  const inserted = parts.values()
  const bindings: (string | number)[] = []
  const text = template.replaceAll(/[#?]/g, place => {
    const part = inserted.next().value as Sql | string | number
    if (typeof part !== 'object') bindings.push(part)
    else bindings.push(...part.bindings)
    return place === '#' ? (part as Sql).sql : '?'
  })
  return { sql: text, bindings }
}
