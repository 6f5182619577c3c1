import type { Engine } from '../stage/sql.ts'
import type { Stage } from '../stage/stage.ts'

/** An encounter made on purpose, and what must hold. */
export type Case = {
  name: string
  /** What must hold, in a sentence. */
  says: string
  engines: readonly Engine[]
  /** Changes settings of the whole database server, or measures what any load on it changes: it has it for itself. */
  needsOwnServer?: boolean
  /** Whether clients pull what endpoints are to have: `pulled` makes such a case of one about endpoints. */
  isPulled?: boolean
  run(stage: Stage): Promise<void>
}

export const ALL = ['mysql', 'mariadb', 'sqlite'] as const
/** Where several processes share a database. */
export const SHARED = ['mysql', 'mariadb'] as const

/** The same case with clients that pull in place of endpoints. */
export const pulled = (it: Case): Case => ({
  ...it,
  name: `pulled-${it.name}`,
  says: `Pulled: ${it.says[0]!.toLowerCase()}${it.says.slice(1)}`,
  isPulled: true,
})
