/**
 * The few things that differ between the databases Tidings runs on. Everything else is the same SQL on all of them: no
 * auto-increment, triggers, views, `GET_LOCK` or window functions, so that other MySQL-speaking clusters can stand in.
 */
export type Engine = 'sqlite' | 'mysql' | 'mariadb'

export type Dialect = {
  engine: Engine
  /**
   * Ends a SELECT whose rows this transaction will change; waits
   * for other holders. SQLite has one writer and needs none.
   */
  forUpdate: string
  /** As `forUpdate`, but passes over rows that another transaction holds. */
  forUpdateSkipLocked: string
  /** Ends a SELECT whose rows must not change until this transaction ends. */
  forShare: string
  /** Follows a table's name where the statement must not be planned any other way. */
  useIndex: (name: string) => string
  /**
   * Selects each `key` and its least `value` from the index on
   * both, reading an entry or two a key and not all there are.
   */
  leastOfEach: (table: string, key: string, value: string, index: string) => string
  /** Epoch milliseconds by the database's clock, which is the one that rules. */
  nowMs: string
  /** Column type of an id or another short ASCII key. */
  key: (length: number) => string
  /** Column type of text that is compared byte by byte, trailing spaces included. */
  text: (length: number) => string
  /** Column type of text without a practical bound. */
  longText: string
  /** Column type of 0 or 1. */
  boolean: string
  /** `INSERT … ` with a clause that turns a duplicate key into an update of the named columns. */
  onDuplicateUpdate: (key: string[], columns: string[]) => string
}

const mysqlFamily = (engine: 'mysql' | 'mariadb', collation: string): Dialect => ({
  engine,
  forUpdate: ' FOR UPDATE',
  forUpdateSkipLocked: ' FOR UPDATE SKIP LOCKED',
  forShare: ' LOCK IN SHARE MODE',
  useIndex: name => `FORCE INDEX (${name})`,
  leastOfEach: (table, key, value, index) =>
    `SELECT ${key}, MIN(${value}) AS ${value} FROM ${table} FORCE INDEX (${index}) GROUP BY ${key}`,
  // From UTC: by way of local time, an hour of each autumn would come twice.
  nowMs: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
  key: length => `char(${length}) character set ascii collate ascii_bin`,
  text: length => `varchar(${length}) character set utf8mb4 collate ${collation}`,
  longText: `mediumtext character set utf8mb4 collate ${collation}`,
  boolean: 'tinyint',
  onDuplicateUpdate: (_key, columns) =>
    ` ON DUPLICATE KEY UPDATE ${columns.map(column => `${column} = VALUES(${column})`).join(', ')}`,
})

export const dialects: Record<Engine, Dialect> = {
  mysql: mysqlFamily('mysql', 'utf8mb4_0900_bin'),
  mariadb: mysqlFamily('mariadb', 'utf8mb4_nopad_bin'),
  sqlite: {
    engine: 'sqlite',
    forUpdate: '',
    forUpdateSkipLocked: '',
    forShare: '',
    useIndex: name => `INDEXED BY ${name}`,
    leastOfEach: (table, key, value) =>
      `WITH RECURSIVE each_key (${key}) AS (
         SELECT MIN(${key}) FROM ${table}
         UNION ALL
         SELECT (SELECT MIN(t.${key}) FROM ${table} t WHERE t.${key} > each_key.${key})
         FROM each_key WHERE each_key.${key} IS NOT NULL
       )
       SELECT ${key}, (SELECT MIN(t.${value}) FROM ${table} t WHERE t.${key} = each_key.${key}) AS ${value}
       FROM each_key WHERE ${key} IS NOT NULL`,
    nowMs: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    key: () => 'text',
    text: () => 'text',
    longText: 'text',
    boolean: 'integer',
    onDuplicateUpdate: (key, columns) =>
      ` ON CONFLICT (${key.join(', ')}) DO UPDATE SET ` +
      `${columns.map(column => `${column} = excluded.${column}`).join(', ')}`,
  },
}
