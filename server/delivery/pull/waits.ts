import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../../shared/errors.ts'
import type { WebhookStatus, WebhookTransport } from '../../../shared/vocabulary.ts'
import type { Clock } from '../../clock.ts'
import type { Database } from '../../database/connect.ts'
import { endOf } from '../../domain/permissions.ts'
import type { Clients } from '../../domain/pull-clients.ts'
import { type Log, logSeldom } from '../../log.ts'
import { HandOver } from './hand-over.ts'
import { type Found, isPulled, lookAt, notPulled } from './looks.ts'
import { SeenWebhooks } from './seen.ts'
import { giveBackTaken } from './take.ts'
import type { Taken, Wait, Waiting, Woken } from './waiting.ts'

// Clients that wait for deliveries. A waiting client has no place, no thread and no connection to the database. One
// statement a second looks for all of them: whether something is due, whether the webhook still is what it was, whether
// the token still is valid.
//
// What this process queues while a client waits here is that client's from the start (`hand-over.ts`). What is
// committed within `TOGETHER_MS` leaves together.

/** How soon changes by other processes are noticed, and so how soon a wait ends for a reason. */
const LOOK_MS = 1_000
/** Clients that begin to wait at the same time share their first look. */
const GATHER_MS = 2
/** Changes of this process wake a look at most this often. */
const HURRY_MS = 50
/**
 * Where another process has just queued something for a client that waits here, it is looked so often for a while: what
 * comes next is not late either.
 */
const BUSY_LOOK_MS = 20
const BUSY_MS = 3_000
/** What this process commits for a webhook within this time goes to one client: the next leaves no sooner. */
const TOGETHER_MS = 30
/** How often it is tried to give back what nobody has, until its lease ends. */
const AGAIN_MS = 500
/** For so long after a take that found all that was due, a client that comes is not looked for. */
const EMPTY_MS = 100
/** The most clients that wait at this process. */
const MOST_WAITING = 5_000
/** Keys of one statement. */
const AT_ONCE = 1_000

/** A take that is under way. */
export type Take = {
  /** Whether something was committed meanwhile that woke nobody: the take may not have found it. */
  isOvertaken: boolean
  /** Whether it has found all that is due. */
  isAll: boolean
  end(): void
}

type Given = { database: Database; clock: Clock; log: Log }

export class Waits {
  readonly #database: Given['database']
  readonly #clock: Given['clock']
  readonly #log: Given['log']
  /** In the order in which they came, by webhook. */
  readonly #lines = new Map<string, Set<Waiting>>()
  #fresh = new Set<string>()
  #isStopping = false
  #freshTimer: NodeJS.Timeout | undefined
  #hurryTimer: NodeJS.Timeout | undefined
  #tick: NodeJS.Timeout | undefined
  /** Until when a webhook is looked at often, by `performance.now()`. */
  readonly #busy = new Map<string, number>()
  #busyTimer: NodeJS.Timeout | undefined
  /** Webhooks of which a client has left within the last `TOGETHER_MS`, and what was committed since. */
  readonly #resting = new Map<string, { isMore: boolean; isDue: boolean }>()
  readonly handOver: HandOver
  readonly seen = new SeenWebhooks()
  readonly #takes = new Map<string, Set<Take>>()
  /** When a take has found all that was due, by webhook and `performance.now()`, unless more was committed since. */
  readonly #emptied = new Map<string, number>()

  constructor({ database, clock, log }: Given) {
    this.#database = database
    this.#clock = clock
    this.#log = log
    this.handOver = new HandOver({
      lines: this.#lines,
      leave: one => this.#wakeOne(one, { why: 'time' }),
      giveBack: taken => void this.giveBack(taken),
      onHanded: webhookId => this.#soon(webhookId, false),
    })
  }

  count(): number {
    let sum = 0
    for (const line of this.#lines.values()) sum += line.size
    return sum
  }

  /** Who waits, by webhook. */
  byWebhook(): Map<string, Clients> {
    return new Map(
      [...this.#lines].map(([id, line]) => {
        const { token, address } = [...line].at(-1)!
        return [id, { waiting: line.size, token: { id: token.id, name: token.name }, address }]
      }),
    )
  }

  /** How many wait, by the name of their access token and their address. */
  byClient(): { accessToken: string; address: string; waiting: number }[] {
    const alike = Map.groupBy(this.#all(), ({ token, address = '' }) => JSON.stringify([token.name, address]))
    return [...alike].map(([key, { length }]) => {
      const [accessToken, address] = JSON.parse(key)
      return { accessToken, address, waiting: length }
    })
  }

  /** Waits as one client. Rejects with the reason if the webhook or the token has ended meanwhile. */
  wait(given: Wait): Promise<Woken> {
    if (this.#isStopping) return Promise.resolve({ why: 'stopping' })
    // A token has at most half as many places as are free, so that others find one.
    const waiting = this.#all()
    const own = waiting.filter(({ token }) => token.id === given.token.id).length
    if (own >= (MOST_WAITING - waiting.length) / 2) throw tooMany()
    return new Promise((resolve, reject) => {
      const line = this.#lines.get(given.webhookId) ?? new Set()
      // Where others wait for deliveries already, nothing is due: they would have been woken.
      const [first] = line
      const isNone = (first?.isLooked && first.isActive) || this.#isEmpty(given.webhookId)
      const isKnown = isNone && given.isActive && given.until > performance.now()
      const nothing = { isMarked: false, owed: 0, jobs: [], leaseEnd: Number.POSITIVE_INFINITY }
      const one: Waiting = { ...given, ...nothing, isLooked: isKnown, resolve, reject }
      this.#lines.set(given.webhookId, line.add(one))
      this.#tick ??= setInterval(() => this.#lookAgain(), LOOK_MS)
      given.gone.addEventListener('abort', () => this.#wakeOne(one, { why: 'time' }), { once: true })
      if (given.gone.aborted) this.#wakeOne(one, { why: 'time' })
      else if (!given.isLate && !isKnown) this.look(given.webhookId)
      else this.#mark(one)
    })
  }

  /** It will wait: what marks its signature is not done later, between a commit and its answer. */
  #mark(one: Waiting): void {
    const marking = one.isMarked ? undefined : one.mark()
    one.isMarked = marking === undefined
    marking?.then(
      () => {
        one.isMarked = true
      },
      // A take tries it again.
      error => (error instanceof TidingsError && error.code === 'UNAUTHENTICATED' ? this.#refuse(one, error) : {}),
    )
  }

  /** Makes deliveries due again that no client has got: they need not wait for the end of their lease. */
  async giveBack({ webhookId, jobs, leaseEnd }: Taken): Promise<void> {
    const { transaction } = this.#database
    for (let isDone = jobs.length === 0; !isDone && this.#clock.now() < leaseEnd; ) {
      isDone = await transaction(trx => giveBackTaken(trx, webhookId, jobs, this.#clock.now())).then(
        () => true,
        () => false,
      )
      if (isDone) this.wake(webhookId)
      else await sleep(AGAIN_MS, undefined, { ref: false })
    }
  }

  /** Reports that deliveries are due: wakes the client that has waited longest, which takes what it can. */
  wake(webhookId: string): void {
    let one: Waiting | undefined
    for (const each of this.#lines.get(webhookId) ?? []) {
      if (each.isActive && each.jobs.length === 0 && (!one || each.owed === 0)) one = each
      if (one?.owed === 0) break
    }
    if (one) this.#wakeOne(one, { why: 'due' })
    else {
      for (const take of this.#takes.get(webhookId) ?? []) take.isOvertaken = true
      this.#emptied.delete(webhookId)
    }
  }

  /** Reports that this process has committed deliveries that are due, unless a client has just left with some. */
  committed(webhookId: string): void {
    this.#soon(webhookId, true)
  }

  #soon(webhookId: string, isDue: boolean): void {
    if (this.#isStopping) return
    const resting = this.#resting.get(webhookId)
    if (!resting) this.#letGo(webhookId, isDue)
    else Object.assign(resting, { isMore: true, isDue: resting.isDue || isDue })
  }

  /** Lets those go that have deliveries, and one for what is due. */
  #letGo(webhookId: string, isDue: boolean): void {
    for (const one of this.#lines.get(webhookId) ?? []) if (one.jobs.length > 0) this.#wakeOne(one, { why: 'time' })
    if (isDue) this.wake(webhookId)
    const resting = { isMore: false, isDue: false }
    this.#resting.set(webhookId, resting)
    setTimeout(() => {
      this.#resting.delete(webhookId)
      if (resting.isMore) this.#letGo(webhookId, resting.isDue)
    }, TOGETHER_MS)
  }

  /** Begins a take of a webhook's deliveries. */
  take(webhookId: string): Take {
    const takes = this.#takes.get(webhookId) ?? new Set()
    const take: Take = {
      isOvertaken: false,
      isAll: false,
      end: () => {
        takes.delete(take)
        if (takes.size === 0) this.#takes.delete(webhookId)
        if (take.isAll && !take.isOvertaken) this.#emptied.set(webhookId, performance.now())
      },
    }
    this.#takes.set(webhookId, takes.add(take))
    return take
  }

  #isEmpty(webhookId: string): boolean {
    const at = this.#emptied.get(webhookId)
    return at !== undefined && performance.now() - at < EMPTY_MS
  }

  /** Reports that this process has changed something: looks soon. */
  hurry(): void {
    this.#emptied.clear()
    this.seen.forget()
    if (this.#lines.size === 0 || this.#hurryTimer) return
    this.#hurryTimer = setTimeout(async () => {
      await this.#lookQuietly([...this.#lines.keys()])
      this.#hurryTimer = undefined
    }, HURRY_MS)
  }

  /** Ends all waits at once. */
  stop(): void {
    this.#isStopping = true
    clearTimeout(this.#freshTimer)
    clearTimeout(this.#hurryTimer)
    clearTimeout(this.#busyTimer)
    for (const one of this.#all()) this.#wakeOne(one, { why: 'stopping' })
  }

  #all(): Waiting[] {
    return [...this.#lines.values()].flatMap(line => [...line])
  }

  #leave(one: Waiting): boolean {
    const line = this.#lines.get(one.webhookId)
    if (!line?.delete(one)) return false
    if (line.size === 0) this.#lines.delete(one.webhookId)
    if (this.#lines.size === 0) {
      clearInterval(this.#tick)
      this.#tick = undefined
    }
    return true
  }

  /** Ends a wait; one that has deliveries ends with them. */
  #wakeOne(one: Waiting, woken: Woken): void {
    if (!this.#leave(one)) return
    one.resolve(one.jobs.length === 0 ? woken : { why: 'handed', handed: one })
  }

  #refuse(one: Waiting, error: Error): void {
    if (!this.#leave(one)) return
    void this.giveBack(one)
    one.reject(error)
  }

  /** Looks for some webhooks, or at everything that waits. */
  async #lookAt(webhookIds: string[], isOften = false): Promise<void> {
    for (let from = 0; from < webhookIds.length; from += AT_ONCE) {
      const some = webhookIds.slice(from, from + AT_ONCE)
      const waiting = some.flatMap(id => [...(this.#lines.get(id) ?? [])])
      const tokens = new Map(waiting.map(({ token }) => [token.id, token]))
      if (waiting.length === 0) continue
      const wasQuiet = new Set(some.filter(id => this.#isQuiet(id)))
      const startedAt = performance.now()
      const now = this.#clock.now()
      const found = await lookAt(this.#database, { webhookIds: some, tokenIds: [...tokens.keys()], now })
      this.#tell(waiting, found, { wasQuiet, isOften, startedAt })
    }
  }

  /** Whether what a look finds due, while clients wait, was committed elsewhere: a client here would be at it. */
  #isQuiet(webhookId: string): boolean {
    return !this.#resting.has(webhookId) && !this.#takes.has(webhookId)
  }

  #tell(
    waiting: Waiting[],
    found: Found[],
    { wasQuiet, isOften, startedAt }: { wasQuiet: ReadonlySet<string>; isOften: boolean; startedAt: number },
  ): void {
    const now = this.#clock.now()
    const waited = new Set(waiting.filter(one => one.isLooked && one.isActive).map(one => one.webhookId))
    const webhooks = new Map(found.filter(({ kind }) => kind === 'webhook').map(row => [row.id, row]))
    const tokens = new Map(found.filter(({ kind }) => kind === 'token').map(row => [row.id, row]))
    const pings = Map.groupBy(
      found.filter(({ kind }) => kind === 'ping'),
      ({ id }) => id,
    )
    for (const one of waiting) {
      one.isLooked = true
      const token = tokens.get(one.token.id)
      const ended = endOf({ revokedAt: token ? token.number : now, expiresAt: token?.ends_at ?? null }, now)
      const webhook = webhooks.get(one.webhookId)
      const ping = pings.get(one.webhookId)?.findIndex(row => one.isSeen || row.owner === one.token.id)
      if (!ended) this.handOver.believe(one.token.id, startedAt)
      if (ended) this.#refuse(one, new TidingsError('UNAUTHENTICATED', ended.message, { reason: ended.reason }))
      else if (ping !== undefined && ping >= 0) {
        const [taken] = pings.get(one.webhookId)!.splice(ping, 1)
        this.#wakeOne(one, { why: 'ping', deliveryId: taken!.state })
      } else if (one.isActive) this.#tellOfActive(one, webhook)
      // Who waits for an id that it does not see creates the webhook itself, or learns nothing of it.
      else if (isPulled(webhook) && (one.isSeen || webhook?.owner === one.token.id))
        this.#wakeOne(one, { why: 'active' })
    }
    // One client takes what is due; if that is all that it can take, it wakes the next.
    const due = [...webhooks].filter(([, webhook]) => Number(webhook.number) === 1)
    for (const [id] of due) {
      const isElsewhere = waited.has(id) && wasQuiet.has(id) && this.#isQuiet(id)
      if (isElsewhere) this.#busy.set(id, performance.now() + BUSY_MS)
      if (isElsewhere || !isOften) this.wake(id)
    }
    for (const one of waiting) if (this.#lines.get(one.webhookId)?.has(one)) this.#mark(one)
    if (this.#busy.size > 0 && !this.#isStopping) {
      this.#busyTimer ??= setTimeout(() => this.#lookOften(), BUSY_LOOK_MS)
    }
  }

  async #lookOften(): Promise<void> {
    for (const [id, until] of this.#busy) if (until < performance.now()) this.#busy.delete(id)
    await this.#lookQuietly(
      [...this.#busy.keys()].filter(id => this.#lines.has(id) && this.#isQuiet(id)),
      true,
    )
    const goesOn = this.#busy.size > 0 && !this.#isStopping
    this.#busyTimer = goesOn ? setTimeout(() => this.#lookOften(), BUSY_LOOK_MS) : undefined
  }

  #tellOfActive(one: Waiting, webhook: Found | undefined): void {
    if (!webhook) this.#refuse(one, new TidingsError('NOT_FOUND', 'The webhook was deleted.', { ids: [one.webhookId] }))
    else if (!isPulled(webhook)) {
      this.#refuse(one, notPulled(one.webhookId, webhook.state as WebhookStatus, webhook.about as WebhookTransport))
    }
  }

  #lookQuietly(webhookIds: string[], isOften = false): Promise<void> {
    return this.#lookAt(webhookIds, isOften).catch(error => {
      logSeldom(
        this.#log,
        'warn',
        'waits',
        { err: error },
        'what is due for waiting clients cannot be read; trying until it can',
      )
    })
  }

  look(webhookId: string): void {
    this.#fresh.add(webhookId)
    this.#freshTimer ??= setTimeout(async () => {
      this.#freshTimer = undefined
      const ids = [...this.#fresh]
      this.#fresh = new Set()
      await this.#lookQuietly(ids)
      this.#endInTime()
    }, GATHER_MS)
  }

  /** Ends waits whose time is over: those of one turn together. A wait that ends now has had a look. */
  #endInTime(): void {
    const now = performance.now()
    for (const one of this.#all()) if (one.until <= now) this.#wakeOne(one, { why: 'time' })
  }

  async #lookAgain(): Promise<void> {
    for (const id of this.#emptied.keys()) if (!this.#isEmpty(id)) this.#emptied.delete(id)
    this.handOver.forget()
    await this.#lookQuietly([...this.#lines.keys()])
    this.#endInTime()
  }
}

const tooMany = (): TidingsError =>
  new TidingsError('UNAVAILABLE', 'Too many clients wait at this server. Try again in 5 s.', { retryAfterSeconds: 5 })
