import { type Database, rows } from '../database/connect.ts'
import type { AccessToken } from '../domain/permissions.ts'

const MOST_TOKENS = 100_000
/** A tenant that has asked nothing for so long is no longer counted with. */
const GONE_MS = 10_000

/** The tenant of all tokens that see all organisations: who runs the installation. */
const OPERATOR = 'operator'

/**
 * Whose queries share a tenant's places and turns: of the tokens that see some organisations only, those with the same
 * least id of an organisation. What a token sees is never changed.
 */
export class Tenants {
  readonly #database: Database
  readonly #known = new Map<string, string>()
  readonly #now: () => number
  #last: string | undefined
  /** When one tenant asked after another. */
  #changedAt = Number.NEGATIVE_INFINITY

  constructor(database: Database, now: () => number = () => performance.now()) {
    this.#database = database
    this.#now = now
  }

  /** A tenant asks something. */
  notice(tenant: string): void {
    if (this.#last !== undefined && this.#last !== tenant) this.#changedAt = this.#now()
    this.#last = tenant
  }

  /** Whether more than one tenant has asked lately. */
  get areSeveral(): boolean {
    return this.#now() - this.#changedAt < GONE_MS
  }

  async of({ id, seesAllOrganisations }: AccessToken): Promise<string> {
    return seesAllOrganisations ? OPERATOR : (this.#known.get(id) ?? (await this.#read(id)))
  }

  async #read(tokenId: string): Promise<string> {
    const [found] = await rows<{ tenant: string | null }>(
      this.#database.knex,
      'SELECT MIN(organisation_id) AS tenant FROM access_token_organisations WHERE access_token_id = ?',
      [tokenId],
    )
    const tenant = found?.tenant ?? tokenId
    if (this.#known.size >= MOST_TOKENS) this.#known.clear()
    this.#known.set(tokenId, tenant)
    return tenant
  }
}
