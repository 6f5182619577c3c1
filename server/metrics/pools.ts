import { Gauge, Histogram, type Registry } from 'prom-client'
import type { Database } from '../database/connect.ts'

/** The members of knex's pool (tarn) that knex leaves untyped. */
type Pool = {
  numUsed(): number
  numFree(): number
  numPendingAcquires(): number
  on(event: 'acquireRequest' | 'acquireSuccess' | 'acquireFail', listener: (id: number) => void): void
}

const connections = (registry: Registry) => {
  const pools = new Map<string, Pool>()
  const wait = new Histogram({
    name: 'tidings_database_connection_wait_seconds',
    help: 'Time that work waits for a database connection, by pool.',
    labelNames: ['pool'],
    buckets: [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10],
    registers: [registry],
  })
  new Gauge({
    name: 'tidings_database_connections',
    help: 'Database connections by pool: used, free, and waited for.',
    labelNames: ['pool', 'state'],
    registers: [registry],
    collect() {
      for (const [name, pool] of pools) {
        this.set({ pool: name, state: 'used' }, pool.numUsed())
        this.set({ pool: name, state: 'free' }, pool.numFree())
        this.set({ pool: name, state: 'waited for' }, pool.numPendingAcquires())
      }
    },
  })
  return { pools, wait }
}

const known = new WeakMap<Registry, ReturnType<typeof connections>>()

/** Measures the connections of a database's pool, and the wait for them. */
export const watchPool = (registry: Registry, name: string, { knex }: Database): void => {
  const { pools, wait } = known.get(registry) ?? connections(registry)
  known.set(registry, { pools, wait })
  const { pool } = knex.client as { pool: Pool }
  pools.set(name, pool)
  const since = new Map<number, number>()
  pool.on('acquireRequest', id => since.set(id, performance.now()))
  const ended = (id: number): void => {
    wait.observe({ pool: name }, (performance.now() - (since.get(id) ?? performance.now())) / 1000)
    since.delete(id)
  }
  pool.on('acquireSuccess', ended)
  pool.on('acquireFail', ended)
}
