declare module 'knex/lib/dialects/better-sqlite3/index.js' {
  import type { Knex } from 'knex'
  /** Untyped inside knex; these are the members that server/database/sqlite.ts replaces or calls. */
  export default class BetterSqlite3Client extends Knex.Client {
    connectionSettings: { filename: string }
    _driver(): unknown
    acquireRawConnection(): Promise<unknown>
    destroyRawConnection(connection: unknown): Promise<void>
    _query(connection: unknown, query: unknown): Promise<unknown>
    _formatBindings(bindings: unknown): unknown[]
  }
}
