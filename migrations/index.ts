import type { Knex } from 'knex'
import * as initial from './0001_initial.ts'
import * as epochs from './0003_epochs.ts'

export type Migration = {
  up(knex: Knex): Promise<void>
  down(knex: Knex): Promise<void>
}

/** Every migration by its name, in order. A name that has been released never changes, nor does what it does. */
export const migrations: Record<string, Migration> = {
  '0001_initial': initial,
  '0003_epochs': epochs,
}
