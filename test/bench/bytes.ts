import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { rows } from '../../server/database/connect.ts'
import { createLog } from '../../server/log.ts'
import { forgetSignaturesUsed } from '../../server/scheduler/leftovers.ts'
import { purge } from '../../server/scheduler/purge.ts'
import { engines } from '../support/databases.ts'
import { openCounters } from './database-counters.ts'
import { table as columnsOf } from './figures.ts'
import { startWorld, type World } from './world.ts'

// The bytes of a delivery in the database, with its event, its attempt, and the mutation that caused it: what tables
// and indexes grow by while so many events are delivered, once each, and what is left after the retention purge. A
// server's sizes are pages with rows, which an extent that is only reserved does not count among.
//
//   npm run bench -- bytes [--engine NAME] [--events 20000]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    events: { type: 'string', default: '20000' },
  },
})
const EVENTS = Number(options.events)
const IN_FLIGHT = 50
const RETENTION_DAYS = 30
const DAY_MS = 24 * 3600 * 1000
/** For a server, which removes deleted rows by and by. */
const REST_MS = 1_000
const REST_WITHIN_MS = 60_000

/** The rows of a table, or one of its indexes. */
type Tree = { table: string; name: string; isRows: boolean; bytes: number }
type Ask = <Row>(sql: string) => Promise<Row[]>
type Sizes = { trees: Tree[]; fileBytes: number }
/** How an engine says what is stored. */
type Inspector = {
  sizes(): Promise<Sizes>
  /** Of a table, those that hold text. */
  textColumns(table: string): Promise<string[]>
}

const onSqlite = (ask: Ask): Inspector => ({
  async sizes() {
    const trees = await ask<Tree>(
      `SELECT s.tbl_name AS "table", d.name AS name, s.type = 'table' AS isRows, d.pgsize AS bytes
       FROM dbstat d JOIN sqlite_schema s ON s.name = d.name WHERE d.aggregate = TRUE`,
    )
    const [file] = await ask<{ bytes: number }>(
      'SELECT page_count * page_size AS bytes FROM pragma_page_count, pragma_page_size',
    )
    return { trees: trees.map(tree => ({ ...tree, isRows: Boolean(tree.isRows) })), fileBytes: file!.bytes }
  },
  async textColumns(table) {
    const found = await ask<{ name: string; type: string }>(`SELECT name, type FROM pragma_table_info('${table}')`)
    return found.flatMap(({ name, type }) => (/char|text/i.test(type) ? [name] : []))
  },
})

const onServer = (ask: Ask): Inspector => ({
  async sizes() {
    const tables = await ask<{ name: string }>(
      "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE() AND engine = 'InnoDB'",
    )
    await ask(`ANALYZE TABLE ${tables.map(({ name }) => name).join(', ')}`)
    const trees = await ask<Tree>(
      `SELECT table_name AS \`table\`, index_name AS name, index_name = 'PRIMARY' AS isRows,
         stat_value * @@innodb_page_size AS bytes
       FROM mysql.innodb_index_stats WHERE database_name = DATABASE() AND stat_name = 'n_leaf_pages'`,
    )
    const [file] = await ask<{ bytes: number }>(
      `SELECT SUM(data_length + index_length + data_free) AS bytes FROM information_schema.tables
       WHERE table_schema = DATABASE()`,
    )
    const numbers = trees.map(tree => ({ ...tree, isRows: Boolean(tree.isRows), bytes: Number(tree.bytes) }))
    return { trees: numbers, fileBytes: Number(file!.bytes) }
  },
  async textColumns(table) {
    const found = await ask<{ name: string }>(
      `SELECT column_name AS name FROM information_schema.columns WHERE table_schema = DATABASE()
       AND table_name = '${table}' AND (data_type LIKE '%char' OR data_type LIKE '%text') ORDER BY ordinal_position`,
    )
    return found.map(({ name }) => name)
  },
})

const deliver = async (world: World): Promise<void> => {
  let accepted = 0
  while (accepted < EVENTS) {
    const publishing = world.publish({ inFlight: IN_FLIGHT })
    await wait(Math.min(2_000, Math.max(100, EVENTS - accepted)))
    accepted += (await publishing()).accepted
  }
  await world.settled()
}

/** Does what the scheduler has done a day after the retention has passed. Entries of the audit log are kept longer. */
const purgeAll = async ({ given: { database } }: World): Promise<void> => {
  const now = Date.now() + (RETENTION_DAYS + 1) * DAY_MS
  const tools = {
    ...{ database, clock: { now: () => now }, log: createLog('warn') },
    ...{ reportDueDays: 30, retentionDays: RETENTION_DAYS, onEvents() {} },
  }
  for (const step of [forgetSignaturesUsed, purge]) {
    const next = step.begin(tools)
    while (await next()) {}
  }
}

/** The sizes once they no longer change. */
const atRest = async ({ sizes }: Inspector): Promise<Sizes> => {
  const until = Date.now() + REST_WITHIN_MS
  let last = await sizes()
  for (;;) {
    await wait(REST_MS)
    const next = await sizes()
    const isAtRest = JSON.stringify(next) === JSON.stringify(last)
    last = next
    if (isAtRest || Date.now() > until) return last
  }
}

const measure = async (engine: string): Promise<void> => {
  // Without a scheduler, whose own purge and counts would come in between.
  const world = await startWorld(engine, { env: { TIDINGS_ROLES: 'api,delivery', TIDINGS_LOG_LEVEL: 'warn' } })
  const { database, url } = world.given
  const counters = database.dialect.isEmbedded ? undefined : await openCounters(url)
  try {
    const ask: Ask = counters?.ask ?? (sql => rows(database.knex, sql))
    // Otherwise the sizes of MySQL's tables are a day old; MariaDB has no such setting.
    await counters?.ask('SET SESSION information_schema_stats_expiry = 0').catch(() => {})
    const inspector = counters ? onServer(ask) : onSqlite(ask)
    const empty = await inspector.sizes()
    await deliver(world)
    await world.server().end('SIGTERM')
    const full = await inspector.sizes()
    const [{ n: count } = { n: 0 }] = await ask<{ n: number }>('SELECT COUNT(*) AS n FROM deliveries')
    const grown = grownFrom(empty, full)
    const columns = await columnBytes(ask, inspector, grown)
    await purgeAll(world)
    const left = grownFrom(empty, counters ? await atRest(inspector) : await inspector.sizes())
    report(engine, Number(count), grown, left, columns)
  } finally {
    await counters?.close()
    await world.stop()
  }
}

const grownFrom = (empty: Sizes, { trees, fileBytes }: Sizes): Sizes => {
  const before = new Map(empty.trees.map(({ table, name, bytes }) => [`${table} ${name}`, bytes]))
  const bytesOf = ({ table, name, bytes }: Tree) => bytes - (before.get(`${table} ${name}`) ?? 0)
  return { trees: trees.map(tree => ({ ...tree, bytes: bytesOf(tree) })), fileBytes: fileBytes - empty.fileBytes }
}

type Column = { name: string; bytes: number }

/** What the text of columns takes in all rows, without that of the indexes. */
const columnBytes = async (ask: Ask, { textColumns }: Inspector, { trees }: Sizes): Promise<Column[]> => {
  const found: Column[] = []
  for (const table of tablesOf(trees)) {
    const names = await textColumns(table)
    const sums = names.map((name, n) => `SUM(OCTET_LENGTH(${name})) AS c${n}`)
    const [row] = await ask<Record<string, number>>(`SELECT ${sums.join(', ')} FROM ${table}`)
    found.push(...names.map((name, n) => ({ name: `${table}.${name}`, bytes: Number(row?.[`c${n}`] ?? 0) })))
  }
  return found
}

/** Less than a byte for two events is no growth. */
const isGrown = ({ bytes }: { bytes: number }): boolean => bytes > EVENTS / 2
const tablesOf = (trees: Tree[]): string[] => [...new Set(trees.filter(isGrown).map(({ table }) => table))].toSorted()
const sum = (trees: Tree[]): number => trees.reduce((total, { bytes }) => total + bytes, 0)

const report = (engine: string, count: number, grown: Sizes, left: Sizes, columns: Column[]): void => {
  const a = (bytes: number) => Math.round(bytes / count).toLocaleString('en')
  const line = (name: string, isIn: (tree: Tree) => boolean): string[] => {
    const of = ({ trees }: Sizes, isRows: boolean) => a(sum(trees.filter(each => isIn(each) && each.isRows === isRows)))
    return [name, of(grown, true), of(grown, false), of(left, true), of(left, false)]
  }
  const tables = tablesOf([...grown.trees, ...left.trees])
  console.log(`\n${engine}: bytes a delivery, of ${count}`)
  console.log(
    columnsOf([
      ['', 'rows', 'indexes', 'rows after the purge', 'indexes after it'],
      ...tables.map(name => line(name, ({ table }) => table === name)),
      line('together', () => true),
    ]),
  )
  console.log(`files: ${a(grown.fileBytes)}, after the purge ${a(left.fileBytes)}`)
  const byBytes = <Each extends { bytes: number }>(all: Each[]) =>
    all.filter(isGrown).toSorted((one, other) => other.bytes - one.bytes)
  console.log('\nindexes')
  const indexes = byBytes(grown.trees.filter(({ isRows }) => !isRows))
  console.log(columnsOf(indexes.map(({ table, name, bytes }) => [`${table}: ${name}`, a(bytes)])))
  console.log('\ncolumns of text')
  console.log(columnsOf(byBytes(columns).map(({ name, bytes }) => [name, a(bytes)])))
}

for (const engine of engines) if (engine.startsWith(options.engine)) await measure(engine)
