import type { Knex } from 'knex'
import { either, type Fragment } from './fragment.ts'

/**
 * Everything that differs between the supported databases. To support another, write its dialect here and choose it in
 * connect.ts. Every other statement has the same text on all engines, and uses nothing that a MySQL-compatible cluster
 * lacks: no auto-increment, triggers, views or `GET_LOCK`. All engines, TiDB included, have common table expressions
 * and window functions.
 */
export type Dialect = {
  engine: 'sqlite' | 'mysql' | 'mariadb'
  /** The name for messages, such as `MySQL`. */
  name: string
  /** Major and minor version of the oldest release that Tidings is tested on. */
  oldestVersion: readonly [number, number]
  /** The SQL expression for the server's version. */
  version: string
  /** Whether one process uses the database through one connection, and is blocked while a statement runs. */
  isEmbedded: boolean

  /** Ends a SELECT whose rows this transaction will change; waits for other holders. */
  forUpdate: string
  /** As `forUpdate`, but skips rows that another transaction has locked. */
  forUpdateSkipLocked: string
  /** Ends a SELECT whose rows must not change until this transaction ends; empty if nobody else can write. */
  forShare: string
  /** As `forShare`, but skips rows that another transaction is changing. */
  forShareSkipLocked: string
  /** Whether SKIP LOCKED waits for no other transaction. */
  skipsLocked: boolean

  /** A SELECT that fails (contention) after this time, even while it waits for a lock. */
  within(ms: number, select: string): string
  /** Makes a session read-only, and fails each SELECT after this time; empty if the engine can do neither. */
  readingWithin(ms: number): string

  /** Follows a table's name if the statement must use this index. */
  useIndex(name: string): string
  /** The whole quotient of a column of whole numbers. */
  quotient(column: string, divisor: number): string
  /** A SELECT with an ORDER BY and a LIMIT of its own, as a member of a UNION. */
  member(select: string): string
  /** Joins a table so that its rows are looked up for those of the table before it, never the reverse. */
  joinInOrder: string
  /** A table's rows that meet a condition, under an alias, and what of that condition a join has to state after ON. */
  seenInJoin(table: string, alias: string, condition: Fragment | undefined): { from: Fragment; on?: Fragment }
  /** Selects each of `keys` with its least `value` from the index on both, reading one or two entries a key. */
  leastOfEach(table: string, keys: string[], value: string, index: string, page?: Page): Fragment
  /** Begins EXPLAIN of the statement that follows. */
  explain: string
  /** The indexes that one row of EXPLAIN's answer names, as `table.index`. */
  indexesIn(row: Record<string, unknown>): string[]

  /** A SELECT of the bytes that the database takes, free space in its files included. */
  size: string

  /** Epoch milliseconds by the database's clock, which is authoritative. */
  nowMs: string
  /** Column type of an id or another short ASCII key. */
  key(length: number): string
  /** Column type of text that is compared byte by byte, trailing spaces included. */
  text(length: number): string
  /** Column type of text without a practical bound. */
  longText: string
  /** Column type of 0 or 1. */
  boolean: string
  /** The ENGINE of CREATE TABLE, if it names one. */
  storageEngine?: string

  /** Stands between an INSERT's values and the assignments that apply if a row with the same `key` exists. */
  onDuplicate(key: string[]): string
  /** As `onDuplicate`, with assignments that give `columns` the values of the INSERT. */
  onDuplicateUpdate(key: string[], columns: string[]): string

  /** What to bind for a value that is kept as JSON. */
  boundJson(value: object): string | { toSqlString(): string }
  /** A text to compare a column with, in a collation that compares byte by byte. */
  collated(value: string): Fragment
  /** Whether a column's text contains another. */
  contains(column: string, part: string): Fragment
  /** `contains` for a lower-case ASCII part, ignoring the column's case. It may match too much, never too little. */
  containsIgnoringCase(column: string, part: string): Fragment
  /** Whether a column's text matches a regular expression, on an engine that has them. */
  matches?(column: string, pattern: string): Fragment

  /** The rows in what knex's `raw` answers to a SELECT. */
  rowsOf<Row>(answer: unknown): Row[]
  /** How many rows an INSERT, UPDATE or DELETE matched or wrote, in what knex's `raw` answers to it. */
  affectedRowsOf(answer: unknown): number
  /**
   * The kind of an engine's error; undefined if the error is not the engine's own and the statement may not have
   * reached it.
   */
  faultOf(error: unknown): Fault | undefined
}

/** For an embedded engine: at most this many keys after the given ones, or from the start. */
export type Page = { after: readonly (string | number)[]; limit: number }

/**
 * `contention`: another transaction conflicted; nothing was written, and a retry may succeed. `refusal`: the engine
 * refused a value and will refuse it again. `outage`: every other error of an engine, because an error that is not
 * known to be the statement's fault may pass: a demoted primary, a full disk, a cluster without a majority.
 */
export type Fault = 'contention' | 'duplicate' | 'missing table' | 'refusal' | 'outage'

/**
 * The limits of one statement on every engine: bound values, keys of an `IN` beside other values, and SELECTs (each row
 * of knex's INSERT is one). SQLite accepts 32,766 values and 500 SELECTs.
 */
export const STATEMENT_LIMITS = { values: 30_000, keys: 10_000, selects: 200 }

/** The dialect of a connection or a transaction that `connect` has made. */
export const dialectOf = (sql: Knex): Dialect => sql.userParams.dialect

type Contains = Dialect['contains']

/**
 * With `(?i)`, two letters outside ASCII (the Kelvin sign and the long s) equal an ASCII letter, which LOWER may not
 * consider.
 */
const lowered = (column: string, part: string, contains: Contains): Fragment => {
  const others = [part.includes('k') ? '\u212a' : '', part.includes('s') ? '\u017f' : ''].filter(
    letter => letter !== '',
  )
  const found: Fragment = { sql: `INSTR(LOWER(${column}), ?) > 0`, bindings: [part] }
  return either([found, ...others.map(letter => contains(column, letter))])
}

/** Printable ASCII that neither begins nor ends with a space. */
const isPlain = (text: string): boolean => /^[!-~](?:[ -~]*[!-~])?$/.test(text)

/** Deadlock, lock wait timeout, MariaDB's changed row (1020), NOWAIT, and the limits of `within`. */
const MYSQL_CONTENTION = [1213, 1205, 1020, 3572, 3024, 1969]
/**
 * NULL in a NOT NULL column; a packet too large; a value out of range, truncated, no time, of another character set,
 * too long, or no JSON; a failed CHECK on MySQL and MariaDB.
 */
const MYSQL_REFUSALS = [1048, 1153, 1264, 1265, 1292, 1300, 1366, 1406, 3140, 3819, 3854, 4025]

type Own =
  | 'engine'
  | 'name'
  | 'oldestVersion'
  | 'forShareSkipLocked'
  | 'explain'
  | 'within'
  | 'readingWithin'
  | 'containsIgnoringCase'
  | 'matches'

const seenInJoin: Dialect['seenInJoin'] = (table, alias, on) => ({
  from: { sql: `${table} ${alias}`, bindings: [] },
  ...(on && { on }),
})

const mysqlFamily = (collation: string, own: (contains: Contains) => Pick<Dialect, Own>): Dialect => {
  // Some columns are `ascii`: for these MySQL refuses other characters and pads with spaces. With an explicit collation
  // it does neither, and the other columns can still use their index. The collation is given only where it matters,
  // because an `ascii` column then cannot use its index.
  const contains: Contains = (column, part) => ({
    sql: isPlain(part)
      ? `INSTR(${column}, ?) > 0`
      : `INSTR(CONVERT(${column} USING utf8mb4) COLLATE ${collation}, ?) > 0`,
    bindings: [part],
  })
  return {
    ...own(contains),
    version: 'VERSION()',
    isEmbedded: false,
    forUpdate: ' FOR UPDATE',
    forUpdateSkipLocked: ' FOR UPDATE SKIP LOCKED',
    skipsLocked: true,
    forShare: ' LOCK IN SHARE MODE',
    useIndex: name => `FORCE INDEX (${name})`,
    quotient: (column, divisor) => `${column} DIV ${divisor}`,
    member: select => `(${select})`,
    joinInOrder: 'STRAIGHT_JOIN',
    seenInJoin,
    leastOfEach: (table, keys, value, index) => ({
      sql: `SELECT ${keys}, MIN(${value}) AS ${value} FROM ${table} FORCE INDEX (${index}) GROUP BY ${keys}`,
      bindings: [],
    }),
    indexesIn: ({ table, key }) => (key ? [`${table}.${key}`] : []),
    size: `SELECT SUM(DATA_LENGTH + INDEX_LENGTH + DATA_FREE) AS bytes FROM information_schema.TABLES
      WHERE TABLE_SCHEMA = DATABASE()`,
    // From UTC, because local time has one hour of each autumn twice.
    nowMs: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
    key: length => `char(${length}) character set ascii collate ascii_bin`,
    text: length => `varchar(${length}) character set utf8mb4 collate ${collation}`,
    longText: `mediumtext character set utf8mb4 collate ${collation}`,
    boolean: 'tinyint',
    storageEngine: 'InnoDB',
    onDuplicate: () => ' ON DUPLICATE KEY UPDATE ',
    onDuplicateUpdate: (_key, columns) =>
      ` ON DUPLICATE KEY UPDATE ${columns.map(column => `${column} = VALUES(${column})`).join(', ')}`,
    // JSON has no control characters, and its many double quotes need no escape in a literal.
    boundJson: value => ({ toSqlString: () => `'${JSON.stringify(value).replace(/['\\]/g, '\\$&')}'` }),
    collated: value => ({ sql: isPlain(value) ? '?' : `? COLLATE ${collation}`, bindings: [value] }),
    contains,
    rowsOf: <Row>(answer: unknown) => (answer as [Row[]])[0],
    affectedRowsOf: answer => (answer as [{ affectedRows: number }])[0].affectedRows,
    faultOf: error => {
      const { errno } = error as { errno?: number }
      // Node's own errors have negative numbers.
      if (errno === undefined || errno < 0) return undefined
      if (MYSQL_CONTENTION.includes(errno)) return 'contention'
      if (errno === 1062) return 'duplicate'
      if (errno === 1146) return 'missing table'
      return MYSQL_REFUSALS.includes(errno) ? 'refusal' : 'outage'
    },
  }
}

const mysql = mysqlFamily('utf8mb4_0900_bin', contains => ({
  engine: 'mysql',
  name: 'MySQL',
  oldestVersion: [8, 4],
  forShareSkipLocked: ' FOR SHARE SKIP LOCKED',
  explain: 'EXPLAIN FORMAT=TRADITIONAL ',
  within: (ms, select) => select.replace(/^SELECT/, `SELECT /*+ MAX_EXECUTION_TIME(${ms}) */`),
  readingWithin: ms => `SET SESSION transaction_read_only = 1, SESSION max_execution_time = ${ms}`,
  containsIgnoringCase: (column, part) => lowered(column, part, contains),
  matches: (column, pattern) => ({ sql: `REGEXP_LIKE(${column}, ?, 'c')`, bindings: [pattern] }),
}))

const mariadb = mysqlFamily('utf8mb4_nopad_bin', () => ({
  engine: 'mariadb',
  name: 'MariaDB',
  oldestVersion: [10, 11],
  forShareSkipLocked: ' LOCK IN SHARE MODE SKIP LOCKED',
  explain: 'EXPLAIN ',
  within: (ms, select) => `SET STATEMENT max_statement_time = ${ms / 1000} FOR ${select}`,
  readingWithin: ms => `SET SESSION tx_read_only = 1, SESSION max_statement_time = ${ms / 1000}`,
  // This takes half the time of LOWER, and a pattern that is one literal cannot backtrack.
  containsIgnoringCase: (column, part) => ({
    sql: `${column} REGEXP ?`,
    bindings: [`(?i)${part.replaceAll(/[^\w ]/g, '\\$&')}`],
  }),
  matches: (column, pattern) => ({ sql: `${column} REGEXP ?`, bindings: [pattern] }),
}))

/**
 * TiDB is compatible with MySQL, with five exceptions. It refuses LOCK IN SHARE MODE. It locks nothing with SKIP
 * LOCKED: the second transaction waits instead. It has no read-only sessions. It allows no subquery after ON. Its
 * EXPLAIN has columns of its own. A build without a release's name reports version 8.4.
 */
const tidb: Dialect = {
  ...mysql,
  name: 'TiDB',
  oldestVersion: [8, 4],
  version: "SUBSTRING_INDEX(VERSION(), 'TiDB-v', -1)",
  forUpdateSkipLocked: mysql.forUpdate,
  forShare: mysql.forUpdate,
  forShareSkipLocked: mysql.forUpdate,
  skipsLocked: false,
  readingWithin: ms => `SET SESSION max_execution_time = ${ms}`,
  indexesIn: row => {
    const found = /table:(\w+), (?:clustered )?index:(\w+)/.exec(String(row['access object']))
    return found ? [`${found[1]}.${found[2]}`] : []
  },
  seenInJoin: (table, alias, condition) =>
    condition
      ? {
          from: {
            sql: `(SELECT * FROM ${table} ${alias} WHERE ${condition.sql}) ${alias}`,
            bindings: condition.bindings,
          },
        }
      : seenInJoin(table, alias, condition),
}

const sqliteContains: Contains = (column, part) => ({ sql: `INSTR(${column}, ?) > 0`, bindings: [part] })

/** SQLITE_BUSY and SQLITE_LOCKED. */
const SQLITE_CONTENTION = [5, 6]
/** SQLITE_CONSTRAINT_PRIMARYKEY and SQLITE_CONSTRAINT_UNIQUE. */
const SQLITE_DUPLICATE = [1555, 2067]
/** SQLITE_TOOBIG, SQLITE_CONSTRAINT and SQLITE_MISMATCH. */
const SQLITE_REFUSALS = [18, 19, 20]
/** An extended code has its primary one in the last byte (https://www.sqlite.org/rescode.html). */
const primaryCode = (errcode: number): number => errcode & 0xff

const sqliteOnDuplicate = (key: string[]): string => ` ON CONFLICT (${key.join(', ')}) DO UPDATE SET `

const sqlite: Dialect = {
  engine: 'sqlite',
  name: 'SQLite',
  oldestVersion: [3, 40],
  version: 'sqlite_version()',
  isEmbedded: true,
  // One transaction at a time can write. It locks the whole file from its start.
  forUpdate: '',
  forUpdateSkipLocked: '',
  forShare: '',
  forShareSkipLocked: '',
  skipsLocked: true,
  useIndex: name => `INDEXED BY ${name}`,
  quotient: (column, divisor) => `${column} / ${divisor}`,
  member: select => `SELECT * FROM (${select})`,
  joinInOrder: 'CROSS JOIN',
  seenInJoin,
  leastOfEach: (table, keys, value, index, { after, limit } = { after: [], limit: -1 }) => {
    const columns = (of: string): string => [...keys, value].map(column => `${of}.${column}`).join(', ')
    const first = (condition: string): string =>
      `(SELECT t.rowid FROM ${table} t INDEXED BY ${index} ${condition} ORDER BY ${columns('t')} LIMIT 1)`
    // Compares the last key, then the one before it, and so on: one comparison of all keys would read the equal entries
    // too.
    const nextOf = (bound: (key: string) => string): string => {
      const nexts = keys.map((key, n) => {
        const equal = keys.slice(0, n).map(before => `t.${before} = ${bound(before)} AND `)
        return first(`WHERE ${equal.join('')}t.${key} > ${bound(key)}`)
      })
      return `COALESCE(${nexts.toReversed()})`
    }
    const start = after.length === 0 ? first('') : nextOf(() => '?')
    return {
      sql: `WITH RECURSIVE each_key (${[...keys, value]}) AS (
        SELECT ${columns('f')} FROM ${table} f WHERE f.rowid = ${start}
        UNION ALL
        SELECT ${columns('n')} FROM each_key JOIN ${table} n ON n.rowid = ${nextOf(key => `each_key.${key}`)}
        LIMIT ?
      ) SELECT * FROM each_key`,
      bindings: [...after.flatMap((_, n) => after.slice(0, after.length - n)), limit],
    }
  },
  explain: 'EXPLAIN QUERY PLAN ',
  within: (_ms, select) => select,
  readingWithin: () => '',
  indexesIn: ({ detail }) => {
    const found = /(?:SEARCH|SCAN) (\S+) USING (?:COVERING )?INDEX (\S+)/.exec(String(detail))
    return found ? [`${found[1]}.${found[2]}`] : []
  },
  size: 'SELECT c.page_count * s.page_size AS bytes FROM pragma_page_count c, pragma_page_size s',
  nowMs: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
  key: () => 'text',
  text: () => 'text',
  longText: 'text',
  boolean: 'integer',
  onDuplicate: sqliteOnDuplicate,
  onDuplicateUpdate: (key, columns) =>
    sqliteOnDuplicate(key) + columns.map(column => `${column} = excluded.${column}`).join(', '),
  boundJson: value => JSON.stringify(value),
  collated: value => ({ sql: '?', bindings: [value] }),
  contains: sqliteContains,
  containsIgnoringCase: (column, part) => lowered(column, part, sqliteContains),
  rowsOf: <Row>(answer: unknown) => answer as Row[],
  affectedRowsOf: answer => (answer as { affectedRows: number }).affectedRows,
  faultOf: error => {
    const { errcode, message } = error as { errcode?: number; message?: string }
    if (errcode === undefined) return undefined
    if (SQLITE_CONTENTION.includes(primaryCode(errcode))) return 'contention'
    if (SQLITE_DUPLICATE.includes(errcode)) return 'duplicate'
    if (SQLITE_REFUSALS.includes(primaryCode(errcode))) return 'refusal'
    return /no such table/.test(message ?? '') ? 'missing table' : 'outage'
  },
}

export const dialects = { mysql, mariadb, tidb, sqlite }

/** @param name as in `Dialect.name` */
export const dialectNamed = (name: string): Dialect => Object.values(dialects).find(dialect => dialect.name === name)!
