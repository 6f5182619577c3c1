import { DatabaseSync, type SQLInputValue } from 'node:sqlite'
import { createPool } from 'mysql2/promise'
import { databaseFile } from '../../../shared/database-url.ts'

export type Engine = 'mysql' | 'mariadb' | 'sqlite'

type Value = string | number | null

/** A database accessed by SQL alone, without the server's code. */
export type Sql = {
  engine: Engine
  rows<Row = Record<string, Value>>(statement: string, values?: Value[]): Promise<Row[]>
  /** The one number that a statement selects. */
  number(statement: string, values?: Value[]): Promise<number>
  run(statement: string, values?: Value[]): Promise<void>
  /** A transaction that stays open until it is ended. Not on SQLite, where it would block everybody. */
  hold(statement: string, values?: Value[]): Promise<{ end(): Promise<void> }>
  close(): Promise<void>
}

export const openSql = async (url: string): Promise<Sql> => {
  const file = databaseFile(url)
  return file === undefined ? openMysql(url) : openSqlite(file)
}

const openMysql = async (url: string): Promise<Sql> => {
  const pool = createPool({ uri: url, connectionLimit: 6, charset: 'utf8mb4' })
  const rows = async <Row>(statement: string, values: Value[] = []): Promise<Row[]> => {
    const [found] = await pool.query(statement, values)
    return found as Row[]
  }
  const [found] = await rows<{ version: string }>('SELECT VERSION() AS version')
  return {
    engine: /mariadb/i.test(found!.version) ? 'mariadb' : 'mysql',
    rows,
    number: async (statement, values) => Number(Object.values((await rows<object>(statement, values))[0] ?? {})[0]),
    async run(statement, values = []) {
      await pool.query(statement, values)
    },
    async hold(statement, values = []) {
      const connection = await pool.getConnection()
      await connection.beginTransaction()
      await connection.query(statement, values)
      return {
        async end() {
          await connection.rollback()
          connection.release()
        },
      }
    },
    close: () => pool.end(),
  }
}

const openSqlite = (file: string): Sql => {
  const database = new DatabaseSync(file, { timeout: 10_000 })
  const rows = <Row>(statement: string, values: Value[] = []) =>
    Promise.resolve(database.prepare(statement).all(...(values as SQLInputValue[])) as Row[])
  return {
    engine: 'sqlite',
    rows,
    number: async (statement, values) => Number(Object.values((await rows<object>(statement, values))[0] ?? {})[0]),
    async run(statement, values = []) {
      database.prepare(statement).run(...(values as SQLInputValue[]))
    },
    hold: () => Promise.reject(new Error('A transaction that stays open is not for SQLite')),
    close: async () => database.close(),
  }
}
