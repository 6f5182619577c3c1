import type { Knex } from 'knex'
import { either, type Fragment } from './fragment.ts'

/**
 * All that differs between the databases that Tidings runs on: to serve another, write its dialect here and choose it
 * in connect.ts. Every other statement is the same text on all of them, and needs nothing that a MySQL-speaking cluster
 * lacks: no auto-increment, triggers, views or `GET_LOCK`. Common table expressions and window functions are there on
 * all, TiDB too.
 */
export type Dialect = {
  engine: 'sqlite' | 'mysql' | 'mariadb'
  /** For messages: `MySQL`. */
  name: string
  /** Major and minor version of the oldest release that Tidings is tested on. */
  oldestVersion: readonly [number, number]
  /** The expression that tells the server's version. */
  version: string
  /** One process works on the database, through one connection, and nothing else in it runs while a statement does. */
  isEmbedded: boolean

  /** Ends a SELECT whose rows this transaction will change; waits for other holders. */
  forUpdate: string
  /** As `forUpdate`, but passes over rows that another transaction holds. */
  forUpdateSkipLocked: string
  /** Ends a SELECT whose rows must not change until this transaction ends; empty where nobody else can write. */
  forShare: string
  /** As `forShare`, but passes over rows that another transaction is changing. */
  forShareSkipLocked: string

  /** A SELECT that ends with an error (contention) after so long, also while it waits for a lock. */
  within(ms: number, select: string): string
  /** Makes a session's statements read only, and ends each SELECT with an error after so long; empty where neither. */
  readingWithin(ms: number): string

  /** Follows a table's name where the statement must not be planned any other way. */
  useIndex(name: string): string
  /** Joins a table whose rows are looked up for those of the one before it, and not the other way round. */
  joinInOrder: string
  /** A table's rows that meet a condition, under a name, and what of that a join has to say after ON. */
  seenInJoin(table: string, alias: string, condition: Fragment | undefined): { from: Fragment; on?: Fragment }
  /** Selects each of `keys` and its least `value` from the index on all, reading an entry or two a key and not all. */
  leastOfEach(table: string, keys: string[], value: string, index: string, page?: Page): Fragment
  /** Begins EXPLAIN of the statement that follows. */
  explain: string
  /** The indexes that one row of EXPLAIN's answer names, as `table.index`. */
  indexesIn(row: Record<string, unknown>): string[]

  /** Epoch milliseconds by the database's clock, which is the one that rules. */
  nowMs: string
  /** Column type of an id or another short ASCII key. */
  key(length: number): string
  /** Column type of text that is compared byte by byte, trailing spaces included. */
  text(length: number): string
  /** Column type of text without a practical bound. */
  longText: string
  /** Column type of 0 or 1. */
  boolean: string
  /** What CREATE TABLE names as ENGINE, where it does. */
  storageEngine?: string

  /** Between INSERT's values and the assignments that are made instead where a row with the same `key` exists. */
  onDuplicate(key: string[]): string
  /** As `onDuplicate`, with assignments that give `columns` the values of the INSERT. */
  onDuplicateUpdate(key: string[], columns: string[]): string

  /** A text to compare a column with, in the collation that compares byte by byte. */
  collated(value: string): Fragment
  /** Whether a column's text contains another. */
  contains(column: string, part: string): Fragment
  /** `contains` for an ASCII part in lower case, whatever the column's case. Finds too much, never too little. */
  containsIgnoringCase(column: string, part: string): Fragment
  /** Whether a column's text matches a regular expression, on an engine that has them. */
  matches?(column: string, pattern: string): Fragment

  /** The rows in what knex's `raw` answers to a SELECT. */
  rowsOf<Row>(answer: unknown): Row[]
  /** How many rows an INSERT, UPDATE or DELETE matched or wrote, in what knex's `raw` answers to it. */
  affectedRowsOf(answer: unknown): number
  /** What the engine says by an error; undefined if it is none of its own: the statement may not have reached it. */
  faultOf(error: unknown): Fault | undefined
}

/** Of an embedded engine: so many at most, after those with these keys; from the first on where there are none. */
export type Page = { after: readonly (string | number)[]; limit: number }

/**
 * `contention`: another transaction was in the way; nothing was written, and again may succeed. `refusal`: a value was
 * refused for what it is, and will be again. `outage`: all else that an engine says, since what is not known to be the
 * statement's own fault may pass: a primary that was demoted, a disk that is full, a cluster without a majority.
 */
export type Fault = 'contention' | 'duplicate' | 'missing table' | 'refusal' | 'outage'

/**
 * What one statement holds at most, whatever the engine: values, of which so many keys in an `IN` beside others, and
 * SELECTs, of which each row of knex's INSERT is one. SQLite takes 32,766 values and 500 SELECTs.
 */
export const STATEMENT_LIMITS = { values: 30_000, keys: 10_000, selects: 200 }

/** The dialect of a connection or a transaction that `connect` has made. */
export const dialectOf = (sql: Knex): Dialect => sql.userParams.dialect

type Contains = Dialect['contains']

/** Two letters beyond ASCII, the Kelvin sign and the long s, equal an ASCII letter to `(?i)`: LOWER may not say so. */
const lowered = (column: string, part: string, contains: Contains): Fragment => {
  const others = [part.includes('k') ? '\u212a' : '', part.includes('s') ? '\u017f' : ''].filter(
    letter => letter !== '',
  )
  const found: Fragment = { sql: `INSTR(LOWER(${column}), ?) > 0`, bindings: [part] }
  return either([found, ...others.map(letter => contains(column, letter))])
}

/** Printable ASCII that neither begins nor ends with a space. */
const isPlain = (text: string): boolean => /^[!-~](?:[ -~]*[!-~])?$/.test(text)

/** Deadlock, lock wait, MariaDB's row that was changed since it was read, NOWAIT, and the limits of `within`. */
const MYSQL_CONTENTION = [1213, 1205, 1020, 3572, 3024, 1969]
/**
 * NULL where none may be; a packet that is too large; out of range, cut, not a time, not of its character set, too
 * long; no JSON; a CHECK that fails, on MySQL and on MariaDB.
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
  // Some columns are `ascii`, where MySQL refuses other characters and pads with spaces. Told to compare as the other
  // columns do, it does neither, and those can still use their index. It is told only where it matters, since an
  // `ascii` column cannot.
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
    forShare: ' LOCK IN SHARE MODE',
    useIndex: name => `FORCE INDEX (${name})`,
    joinInOrder: 'STRAIGHT_JOIN',
    seenInJoin,
    leastOfEach: (table, keys, value, index) => ({
      sql: `SELECT ${keys}, MIN(${value}) AS ${value} FROM ${table} FORCE INDEX (${index}) GROUP BY ${keys}`,
      bindings: [],
    }),
    indexesIn: ({ table, key }) => (key ? [`${table}.${key}`] : []),
    // From UTC: by way of local time, an hour of each autumn would come twice.
    nowMs: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
    key: length => `char(${length}) character set ascii collate ascii_bin`,
    text: length => `varchar(${length}) character set utf8mb4 collate ${collation}`,
    longText: `mediumtext character set utf8mb4 collate ${collation}`,
    boolean: 'tinyint',
    storageEngine: 'InnoDB',
    onDuplicate: () => ' ON DUPLICATE KEY UPDATE ',
    onDuplicateUpdate: (_key, columns) =>
      ` ON DUPLICATE KEY UPDATE ${columns.map(column => `${column} = VALUES(${column})`).join(', ')}`,
    collated: value => ({ sql: isPlain(value) ? '?' : `? COLLATE ${collation}`, bindings: [value] }),
    contains,
    rowsOf: <Row>(answer: unknown) => (answer as [Row[]])[0],
    affectedRowsOf: answer => (answer as [{ affectedRows: number }])[0].affectedRows,
    faultOf: error => {
      const { errno } = error as { errno?: number }
      // Node numbers its own errors below zero.
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
  // Half the time of LOWER; a pattern that is one literal cannot backtrack.
  containsIgnoringCase: (column, part) => ({
    sql: `${column} REGEXP ?`,
    bindings: [`(?i)${part.replaceAll(/[^\w ]/g, '\\$&')}`],
  }),
  matches: (column, pattern) => ({ sql: `${column} REGEXP ?`, bindings: [pattern] }),
}))

/**
 * TiDB speaks as MySQL does. It refuses LOCK IN SHARE MODE, and where it is told to pass over what is locked, it locks
 * nothing: there, whoever comes second waits. It has no session that only reads, and no subquery after ON. A build
 * without a release's name says that it is 8.4.
 */
const tidb: Dialect = {
  ...mysql,
  name: 'TiDB',
  oldestVersion: [8, 4],
  version: "SUBSTRING_INDEX(VERSION(), 'TiDB-v', -1)",
  forUpdateSkipLocked: mysql.forUpdate,
  forShare: mysql.forUpdate,
  forShareSkipLocked: mysql.forUpdate,
  readingWithin: ms => `SET SESSION max_execution_time = ${ms}`,
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
  // One transaction at a time can write, and holds the whole file from its start.
  forUpdate: '',
  forUpdateSkipLocked: '',
  forShare: '',
  forShareSkipLocked: '',
  useIndex: name => `INDEXED BY ${name}`,
  joinInOrder: 'CROSS JOIN',
  seenInJoin,
  leastOfEach: (table, keys, value, index, { after, limit } = { after: [], limit: -1 }) => {
    const columns = (of: string): string => [...keys, value].map(column => `${of}.${column}`).join(', ')
    const first = (condition: string): string =>
      `(SELECT t.rowid FROM ${table} t INDEXED BY ${index} ${condition} ORDER BY ${columns('t')} LIMIT 1)`
    // Of the next of the last key, else of the one before it …: a comparison of all at once would read what is equal.
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
  nowMs: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
  key: () => 'text',
  text: () => 'text',
  longText: 'text',
  boolean: 'integer',
  onDuplicate: sqliteOnDuplicate,
  onDuplicateUpdate: (key, columns) =>
    sqliteOnDuplicate(key) + columns.map(column => `${column} = excluded.${column}`).join(', '),
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
