import type { Knex } from 'knex'
import type { Dialect } from '../server/database/engine.ts'
import * as initial from './0001_initial.ts'

export type Migration = {
  up(knex: Knex, dialect: Dialect): Promise<void>
  down(knex: Knex, dialect: Dialect): Promise<void>
}

/** Every migration by its name, in order. A name that has been released never changes, nor does what it does. */
export const migrations: Record<string, Migration> = {
  '0001_initial': initial,
}
