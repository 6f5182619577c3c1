declare module 'knex/lib/dialects/mysql2/index.js' {
  import type { Knex } from 'knex'
  /** Untyped inside knex; these are the members that server/database/mysql.ts replaces or calls. */
  export default class MySQL2Client extends Knex.Client {
    _query(connection: unknown, query: unknown): Promise<unknown>
  }
}
