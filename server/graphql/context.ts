import type { Database } from '../database/connect.ts'
import { CommitInDoubt, REQUEST_MS, transactInTime, unavailable } from '../database/patience.ts'
import type { Transaction } from '../database/transaction.ts'
import type { AttemptTools } from '../delivery/attempt.ts'
import type { DeliveryLoop } from '../delivery/loop.ts'
import type { PullPings } from '../delivery/pull/pings.ts'
import type { Waits } from '../delivery/pull/waits.ts'
import { lockAccessToken } from '../domain/access-tokens.ts'
import { completeEntry, type Entry, nameSubject, writeEntry } from '../domain/audit.ts'
import type { Beside, Change } from '../domain/change.ts'
import type { Made } from '../domain/group-commit.ts'
import type { Claim } from '../domain/idempotency.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { Entering, Submissions } from '../domain/submissions.ts'
import type { CarryingSignature, Mark, TransactWithin } from '../domain/used-signatures.ts'
import { listedTo, partsOf, visibleTo } from '../domain/visibility.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Live } from '../live/live.ts'
import type { Row } from '../mango/documents.ts'
import { type Count, count, find } from '../mango/find.ts'
import type { Explain, MangoQuery } from '../mango/query.ts'
import type { Resource, Visible } from '../mango/resource.ts'
import type { Readers } from '../readers/readers.ts'
import { currentTrace } from '../tracing/tracing.ts'
import { Budget } from './budget.ts'
import { createLoaders, type Loaders } from './loaders.ts'

type Query = MangoQuery | null | undefined

/** The part of the service that queries need. */
export type QueryService = { database: Database; tools: Pick<AttemptTools, 'clock'> }

/** The services that resolvers share with the rest of the server. */
export type Service = QueryService & {
  sealer: Sealer
  tools: AttemptTools
  loop: DeliveryLoop
  pull: { waits: Waits; pings: PullPings }
  readers: Readers
  live: Live
  requireHttps: boolean
  webhooksPerToken: number
  reportDueDays: number
  submissions: Submissions
  /** Until when processes of the previous version may run beside this one, in epoch milliseconds. */
  sideBySideUntil: number
}

/** @param beside rows that are locked with the caller's token and passed to `work` */
type Transact = <T, Row extends object = object>(
  work: (change: Change, row: Row) => Promise<T>,
  beside?: Beside<Row>,
) => Promise<T>

/** @param together where the change can share a transaction with others like it */
type TransactTogether = <T, Row extends object = object>(
  work: (change: Change, row: Row) => Promise<T>,
  beside?: Beside<Row>,
  together?: Together<T>,
) => Promise<T>

type Together<T> = (one: Omit<Entering, 'submission'>) => Promise<Made<T> | undefined>

/** The context of one request: its caller, and what it has loaded. */
export type QueryContext = QueryService & {
  token: AccessToken
  requestId: string
  budget: Budget
  loaders: Loaders
  /** The visible rows of a resource that match a query, `among` the rows of another condition. */
  list(resource: Resource, query: Query, among?: Visible): Promise<Row[]>
  /** The number of matching visible rows of a resource, by the values of fields. */
  count(resource: Resource, selector: unknown, by: readonly string[]): Promise<Count[]>
  /** Explains how a query is answered. */
  explain(resource: Resource, query: Query): Promise<Explain>
  /** Forgets loaded rows before a change. */
  forget(): void
  /** Whether something was changed, which stays so even if a later field fails. */
  hasChanged: boolean
}

/** The same for a request that may change something. */
export type Context = Service &
  QueryContext & {
    /** The Idempotency-Key that the request was sent with, if it was. */
    claim: Claim | undefined
    /** The pending audit log entry of the present field. */
    entry: Audited | undefined
    /**
     * Runs a change in a transaction that locks the caller's token and checks its permissions again. After the commit
     * it wakes the delivery loop, unless the queued deliveries are already being sent. The returned value is the
     * mutation's result: it is stored as JSON, and a repeated request answers from it. A change that returns undefined
     * did nothing.
     * Throws what `work` throws, UNAUTHENTICATED, FORBIDDEN or UNAVAILABLE.
     */
    change: TransactTogether
    /** As `change`, for reads only. */
    look: Transact
    /** As `change`, for what clients do with deliveries: without an entry in the audit log, and without a wake. */
    act: Transact
    /** Marks the request's signature as used before anything is changed; undefined if it is marked. */
    mark(): Promise<void> | undefined
    /** The address of the client. */
    address: string | undefined
    /** Lets another request begin in the place of this one, which from now on only waits. */
    leavePlace(): void
    /** Aborts when nobody waits for the answer any more. */
    gone: AbortSignal
  }

/** @param madeBy returns the id of what a change created or concerns, if the arguments do not contain it */
export type Audited = Entry & { madeBy: ((result: unknown) => string | undefined) | undefined }

/** The part of a request besides its document. */
export type Carried = {
  claim?: Claim | undefined
  /** The row of the audit log that marks the request's signature and has no entry yet. */
  markId?: string | undefined
  carrying?: CarryingSignature | undefined
  budget?: Budget
  address?: string | undefined
  leavePlace?: (() => void) | undefined
  gone?: AbortSignal
}

const NEVER_GONE = new AbortController().signal

export const createQueryContext = <S extends QueryService>(
  service: S,
  token: AccessToken,
  requestId: string,
  budget = new Budget(),
): S & QueryContext => {
  const { database, tools } = service
  const { knex } = database
  const related = visibleTo(token)
  const listed = listedTo(token)
  const options = () => ({ related, now: tools.clock.now(), meter: budget })
  const loaders = () => createLoaders(database, tools.clock, token, budget)
  const partsOnce = () => onceFor(resource => partsOf(knex, token, resource))
  let parts = partsOnce()
  const context: S & QueryContext = {
    ...service,
    token,
    requestId,
    hasChanged: false,
    budget,
    loaders: loaders(),
    async list(resource, query, among = () => {}) {
      const visible: Visible = builder => builder.modify(listed(resource)).modify(among)
      const ofThese = async () =>
        (await parts(resource))?.map(
          (part): Visible =>
            builder =>
              builder.modify(part).modify(among),
        )
      const { rows } = await find(knex, resource, query, visible, { ...options(), parts: ofThese })
      return rows
    },
    count(resource, selector, by) {
      const all = { ...options(), parts: () => parts(resource) }
      return count(knex, resource, { selector, by }, listed(resource), all)
    },
    async explain(resource, query) {
      const all = { ...options(), parts: () => parts(resource), explain: true }
      const { explain } = await find(knex, resource, query, listed(resource), all)
      return explain
    },
    forget() {
      context.loaders = loaders()
      parts = partsOnce()
    },
  }
  return context
}

/** Reads the parts of each resource once: the fields of a request may ask for those of one many times. */
const onceFor = <Parts>(read: (resource: Resource) => Promise<Parts>): ((resource: Resource) => Promise<Parts>) => {
  const known = new Map<Resource, Promise<Parts>>()
  return resource => {
    const found = known.get(resource) ?? read(resource)
    known.set(resource, found)
    return found
  }
}

export const createContext = (
  service: Service,
  token: AccessToken,
  requestId: string,
  carried: Carried = {},
): Context => {
  const { claim, budget, address, leavePlace = () => {}, gone = NEVER_GONE } = carried
  const changing: Pick<Context, 'change' | 'look' | 'act' | 'mark'> = {
    change: (work, beside, together) => changes.change(work, beside, together),
    look: (work, beside) => changes.hold(work, beside),
    act: (work, beside) => changes.act(work, beside),
    mark: () => (carried.carrying?.isMarked === false ? carried.carrying.markNow(service.database.knex) : undefined),
  }
  const query = createQueryContext(service, token, requestId, budget)
  const context: Context = Object.assign(query, { claim, entry: undefined, address, leavePlace, gone, ...changing })
  const changes = new Changes(service, token, carried, context)
  return context
}

type Work<T, Row extends object> = (change: Change, row: Row) => Promise<T>

/** The changes of one request: each in a transaction of its own, or in the one that carries its signature. */
class Changes {
  readonly #service: Service
  readonly #token: AccessToken
  readonly #claim: Claim | undefined
  readonly #carrying: CarryingSignature | undefined
  /** The row that marks the request's signature. */
  readonly #markRow: string | undefined
  /** Whether the row of the mark has no entry of a field yet. */
  #isMarkBlank: boolean
  readonly #context: Context

  constructor(service: Service, token: AccessToken, { claim, markId, carrying }: Carried, context: Context) {
    this.#service = service
    this.#token = token
    this.#claim = claim
    this.#carrying = carrying
    this.#markRow = carrying?.mark.id ?? markId
    this.#isMarkBlank = this.#markRow !== undefined
    this.#context = context
  }

  async change<T, Row extends object>(work: Work<T, Row>, beside?: Beside<Row>, together?: Together<T>): Promise<T> {
    const context = this.#context
    let isSent = false
    const { entry } = context
    const isMarking = this.#carrying !== undefined && !this.#carrying.isMarked
    const watched = async (change: Change, row: Row): Promise<T> => {
      const result = await work(change, row)
      if (entry && result !== undefined) await this.#audit(change, entry, result, isMarking)
      isSent = change.afterCommit?.seesToAll === true
      return result
    }
    const makeTogether = async (mark: Mark): Promise<Made<T> | undefined> => {
      const made = await together!({ token: this.#token, mark, entry: entry!, trace: currentTrace() })
      isSent = made !== undefined
      return made
    }
    const groups = together !== undefined && isMarking && entry !== undefined
    const result = await (this.#claim
      ? this.#changeNoting(this.#claim, watched, beside)
      : this.hold(watched, beside, isMarking ? entry : undefined, groups ? makeTogether : undefined))
    if (result !== undefined) {
      context.entry = undefined
      this.#isMarkBlank = false
    }
    context.hasChanged = true
    if (!isSent) this.#service.loop.wake()
    this.#service.live.hurry()
    return result
  }

  async act<T, Row extends object>(work: Work<T, Row>, beside?: Beside<Row>): Promise<T> {
    const result = await this.hold(work, beside)
    this.#context.hasChanged = true
    return result
  }

  /** Runs a transaction that locks the caller's token and writes the entry with the mark of the signature. */
  hold<T, Row extends object>(
    work: Work<T, Row>,
    beside?: Beside<Row>,
    entry?: Entry,
    makeTogether?: (mark: Mark) => Promise<Made<T> | undefined>,
  ): Promise<T> {
    const { database, tools, loop } = this.#service
    const { now } = tools.clock
    const transact: TransactWithin = (work, forMs = REQUEST_MS) => transactInTime(database, work, { forMs })
    const locked = async (trx: Transaction): Promise<T> => {
      const { token, row } = await lockAccessToken(trx, this.#token, now, beside)
      return work({ trx, token, now, afterCommit: loop.afterCommit(trx) }, row)
    }
    return this.#carrying ? this.#carrying.carry(transact, locked, entry, makeTogether) : transact(locked)
  }

  /** As `hold`, with the result recorded under the key, so that no commit stays in doubt. */
  async #changeNoting<T, Row extends object>(
    claim: Claim,
    work: Work<T, Row>,
    beside: Beside<Row> | undefined,
  ): Promise<T> {
    const noting = async (change: Change, row: Row): Promise<T> => {
      const result = await work(change, row)
      await claim.note(change.trx, result)
      return result
    }
    try {
      const result = await this.hold(noting, beside)
      claim.noted(result)
      return result
    } catch (error) {
      if (!(error instanceof CommitInDoubt)) throw error
      const outcome = await claim.lookAgain(this.#service.database).catch(() => {
        throw error
      })
      if (outcome === undefined) throw unavailable(error.cause)
      return outcome as T
    }
  }

  /**
   * Writes the result of a change into the audit log; with `isThere`, into the row of the mark that was just written.
   */
  async #audit({ trx, now }: Change, entry: Audited, result: unknown, isThere: boolean): Promise<void> {
    const subjectId = entry.madeBy?.(result)
    if (isThere) {
      if (subjectId !== undefined) await nameSubject(trx, this.#markRow!, subjectId)
    } else if (this.#isMarkBlank) await completeEntry(trx, this.#markRow!, entry, subjectId)
    else await writeEntry(trx, entry, subjectId, now())
  }
}
