import { DatabaseSync } from 'node:sqlite'

/** One request as an endpoint saw it. Times in epoch milliseconds. */
export type Arrival = {
  /** The number of the endpoint in the run. */
  endpoint: number
  /** The `jti` of the token, which is the delivery's id. */
  jti: string
  arrivedAt: number
  /** When the answer's status began to be handed over. An endless answer ends when the client has had enough of it. */
  answeredAt: number | null
  /** When the answer had been handed over, or the connection was gone. */
  endedAt: number | null
  /** What was done, or was to be. */
  did: 'reply' | 'hang' | 'reset' | 'babble'
  /** The status of which the headers were sent. */
  status: number | null
  /**
   * Whether the answer was handed over before the connection was
   * gone: up to its headers, where the body is endless, slow or cut.
   */
  isWritten: boolean
  iat: number | null
  exp: number | null
  /** The fault of the request: a failed check of the token, or an unexpected path. */
  wrong: string | null
}

const COLUMNS = [
  'endpoint',
  'jti',
  'arrivedAt',
  'answeredAt',
  'endedAt',
  'did',
  'status',
  'isWritten',
  'iat',
  'exp',
  'wrong',
] as const

/** The log of all endpoints in a file, written by one process and read by another; it may be larger than memory. */
export const openArrivals = (file: string) => {
  const database = new DatabaseSync(file)
  database.exec(`PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
    CREATE TABLE IF NOT EXISTS arrivals (${COLUMNS.join(', ')})`)
  const insert = database.prepare(`INSERT INTO arrivals VALUES (${COLUMNS.map(() => '?').join(', ')})`)
  const written = (row: unknown): Arrival => {
    const arrival = row as Arrival
    return { ...arrival, isWritten: Boolean(arrival.isWritten) }
  }
  return {
    add(arrivals: Arrival[]): void {
      database.exec('BEGIN')
      for (const arrival of arrivals) {
        insert.run(...COLUMNS.map(name => (name === 'isWritten' ? Number(arrival[name]) : arrival[name])))
      }
      database.exec('COMMIT')
    },
    /** Before reading: finds the arrivals of a delivery, and those of an endpoint in their order. */
    index(): void {
      database.exec(`CREATE INDEX by_jti ON arrivals (jti); CREATE INDEX by_endpoint ON arrivals (endpoint, arrivedAt)`)
    },
    /** The arrivals of deliveries, oldest first. */
    of(deliveryIds: string[]): Map<string, Arrival[]> {
      const marks = deliveryIds.map(() => '?').join(', ')
      const found = database.prepare(`SELECT * FROM arrivals WHERE jti IN (${marks}) ORDER BY arrivedAt, endedAt`)
      return Map.groupBy(found.all(...deliveryIds).map(written), ({ jti }) => jti)
    },
    ofEndpoint: (endpoint: number): Arrival[] =>
      database.prepare('SELECT * FROM arrivals WHERE endpoint = ? ORDER BY arrivedAt').all(endpoint).map(written),
    wrong: (): Arrival[] => database.prepare('SELECT * FROM arrivals WHERE wrong IS NOT NULL').all().map(written),
    count: (): number => Number(database.prepare('SELECT COUNT(*) AS n FROM arrivals').get()!.n),
    ids: (): Iterable<string> =>
      (function* () {
        for (const row of database.prepare('SELECT DISTINCT jti FROM arrivals').iterate()) yield String(row.jti)
      })(),
    close: (): void => database.close(),
  }
}

export type Arrivals = ReturnType<typeof openArrivals>
