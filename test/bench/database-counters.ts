import { createConnection, type RowDataPacket } from 'mysql2/promise'

// The counters of a MySQL or MariaDB server. They cover the whole server, so a benchmark needs the server for itself.

/** Sums since the server's start, without those that the server does not count. */
export type Counts = {
  statements: number
  /** Transactions that wrote. */
  commits?: number
  logSyncs?: number
  /** By the kind of statement: `select`, `insert`, … */
  kinds: Record<string, number>
}

export const openCounters = async (databaseUrl: string) => {
  const connection = await createConnection(databaseUrl)
  let own = 0
  const ask = async <Row>(sql: string): Promise<Row[]> => {
    own += 1
    const [found] = await connection.query<RowDataPacket[]>(sql)
    return found as Row[]
  }
  // Off by default. Unlike Com_commit, it counts an UPDATE that is a transaction of its own.
  const countsCommits = await ask("SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").then(
    () => true,
    () => false,
  )
  return {
    ask,
    async read(): Promise<Counts> {
      const status = await ask<{ Variable_name: string; Value: string }>('SHOW GLOBAL STATUS')
      const value = new Map(status.map(({ Variable_name, Value }) => [Variable_name, Number(Value)]))
      const [writing] = countsCommits
        ? await ask<{ count: number }>(
            "SELECT count AS count FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'",
          )
        : []
      // MariaDB no longer counts syncs of the log; its binary log counts the groups it syncs.
      const logSyncs = value.get('Innodb_os_log_fsyncs') ?? value.get('Binlog_group_commits')
      return {
        // This SHOW has been counted, and its follower not yet.
        statements: value.get('Questions')! - (countsCommits ? own - 1 : own),
        ...(writing && { commits: Number(writing.count) }),
        ...(logSyncs !== undefined && { logSyncs }),
        kinds: Object.fromEntries(
          [...value].flatMap(([name, count]) => (/^Com_/.test(name) && count > 0 ? [[name.slice(4), count]] : [])),
        ),
      }
    },
    close: () => connection.end(),
  }
}

export type Counters = Awaited<ReturnType<typeof openCounters>>

/** The difference of two readings. */
export const between = (before: Counts, after: Counts): Counts => ({
  statements: after.statements - before.statements,
  ...(after.commits !== undefined && { commits: after.commits - before.commits! }),
  ...(after.logSyncs !== undefined && { logSyncs: after.logSyncs - before.logSyncs! }),
  kinds: Object.fromEntries(
    Object.entries(after.kinds).flatMap(([kind, count]) => {
      const more = count - (before.kinds[kind] ?? 0)
      return more > 0 ? [[kind, more]] : []
    }),
  ),
})
