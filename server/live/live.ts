import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { isPassing, patiently } from '../database/patience.ts'
import type { Rider } from '../delivery/rider.ts'
import { findByApiKeys } from '../domain/access-tokens.ts'
import { type AccessToken, endOf, requirePermission } from '../domain/permissions.ts'
import { deliveries } from '../domain/resources.ts'
import { visibleTo } from '../domain/visibility.ts'
import { type Log, logSeldom } from '../log.ts'
import type { Row } from '../mango/documents.ts'
import { find } from '../mango/find.ts'
import type { Meter } from '../mango/meter.ts'
import { Changes } from './changes.ts'
import { createSigns } from './signs.ts'
import type { Stream } from './stream.ts'

/** What this process changes has it look at once. */
const HURRY_MS = 50
/** Between two signs of life; shorter than what drops an answer that nobody reads. */
const BEAT_MS = 5_000
/** Who has come is subscribed within so long. */
const COMING_MS = 20_000
/** Deliveries that are answered at once, of which none holds up others for long. */
const AT_ONCE = 100
/** Deliveries that a group is owed while its answers cannot be had; with more it has to come back for them. */
const MOST_OWED = 10_000
const MOST_STREAMS = 2_048
/** Different subscriptions of one token: each costs a statement a change. */
const MOST_QUESTIONS = 256
/** After each look it rests for so many times as long as that took: the process has other work. */
const REST_PART = 3
/** Of all streams together: beyond it, the ones that read least end. */
const MOST_KEPT_BYTES = 64 * 1024 * 1024

/** What one subscriber asks for. Those who ask for the same by the same token are answered by the same work. */
export type Subscriber = {
  key: string
  token: AccessToken
  selector: unknown
  /** Told what it costs to find what the selector matches, and answers those rows, in JSON. */
  answering(token: AccessToken): { meter: Meter; answer(rows: Row[]): Promise<string[]> }
  /** A fault that ends it, as it is told, in JSON. */
  told(error: unknown): string
  stream: Stream
  /** Deliveries that it has to be told of although they have not changed since. */
  missed: readonly string[]
}

/** `id`: its key, unless it has yet to catch up with those who have that. */
type Group = Omit<Subscriber, 'stream' | 'missed'> & { id: string; streams: Set<Stream>; owed: Set<string> }

export type Live = {
  /** What the delivery loop takes along. */
  rider: Rider
  /** Throws UNAVAILABLE where there are too many, or the database cannot be had until `giveUpAt`. */
  ready(tokenId: string, giveUpAt: number): Promise<void>
  subscribe(subscriber: Subscriber): void
  /** Something has changed here, such as this delivery. */
  hurry(deliveryId?: string): void
  /** Ends all streams so that their clients go elsewhere. */
  stop(): void
}

/**
 * Tells subscribers of deliveries as they change. Whoever subscribes, and however many, the database is asked for
 * changes once a process, and only while somebody subscribes and something happens; what a subscriber may see is asked
 * when there is something to send.
 */
export const createLive = ({ database, clock, log }: { database: Database; clock: Clock; log: Log }): Live => {
  const { knex } = database
  const groups = new Map<string, Group>()
  let changes: Changes | undefined
  let beginning: Promise<void> | undefined
  let isStopping = false
  /** When somebody came last, by `performance.now()`. */
  let askedAt = Number.NEGATIVE_INFINITY
  const signs = createSigns(knex, clock)
  let woken = new AbortController()
  let isHurried = false
  /** Everything that changed until then is told. */
  let cursor: number | undefined

  const streams = (): Stream[] => [...groups.values()].flatMap(group => [...group.streams])

  const begin = async (): Promise<void> => {
    const begun = new Changes(knex, clock)
    cursor = clock.now()
    await begun.begin()
    changes = begun
    void run()
  }

  const run = async (): Promise<void> => {
    const beating = setInterval(() => {
      for (const { streams, owed } of groups.values())
        for (const stream of streams) stream.beat(owed.size === 0 ? cursor : undefined)
    }, BEAT_MS)
    signs.bring(() => woken.abort())
    let checkedAt = performance.now()
    /** The sign up to which all is found. */
    let found = ''
    /** Until then looks are made although there is no sign: what was begun before one may be committed after it. */
    let quietAt = Number.NEGATIVE_INFINITY
    while (!isStopping && (groups.size > 0 || performance.now() - askedAt < COMING_MS)) {
      const wasHurried = await rest()
      if (isStopping) break
      const lookedAt = performance.now()
      try {
        const startedAt = clock.now()
        const sign = await signs.take()
        const isNew = sign !== undefined && sign.ends !== found
        const isNeeded = wasHurried || isNew || startedAt < quietAt || changes!.isDue()
        const ids = isNeeded ? await changes!.look() : []
        if (isNew) found = sign.ends
        if (isNew || ids.length > 0) quietAt = startedAt + changes!.findAllMs
        for (const group of groups.values()) owe(group, ids)
        const isTime = performance.now() - checkedAt >= BEAT_MS && (startedAt < quietAt || hasExpired())
        if (isTime || [...groups.values()].some(({ owed }) => owed.size > 0)) {
          checkedAt = performance.now()
          await checkTokens()
        }
        for (const group of groups.values()) await pay(group, startedAt)
        cursor = isNeeded ? startedAt : (sign?.at ?? cursor)
        for (const group of groups.values()) joinOthers(group)
      } catch (error) {
        // What a sign was of may not be found yet.
        quietAt = clock.now() + changes!.findAllMs
        logSeldom(log, 'warn', 'live', { err: error }, 'changes cannot be told to subscribers; trying until they can')
      }
      await sleep(REST_PART * (performance.now() - lookedAt), undefined, { ref: false })
    }
    clearInterval(beating)
    signs.bring()
    changes = undefined
  }

  /** Until there is a sign, this process has changed something, or it is time to ask. Tells whether it has. */
  const rest = async (): Promise<boolean> => {
    await sleep(signs.dueInMs(), undefined, { signal: woken.signal, ref: false }).catch(() => {})
    if (isHurried) await sleep(HURRY_MS)
    const wasHurried = isHurried
    isHurried = false
    woken = new AbortController()
    return wasHurried
  }

  const hurry = (): void => {
    isHurried = true
    woken.abort()
  }

  const hasExpired = (): boolean => [...groups.values()].some(({ token }) => endOf(token, clock.now()))

  const owe = (group: Group, ids: readonly string[]): void => {
    for (const id of ids) group.owed.add(id)
    if (group.owed.size <= MOST_OWED) return
    groups.delete(group.id)
    for (const stream of group.streams) stream.breakOff()
  }

  /** Who is owed nothing any more is answered with all who ask for the same. */
  const joinOthers = (group: Group): void => {
    if (group.id === group.key || group.owed.size > 0) return
    const others = groups.get(group.key)
    if (others && others.owed.size > 0) return
    groups.delete(group.id)
    group.id = group.key
    if (!others) groups.set(group.key, group)
    else for (const stream of group.streams) others.streams.add(stream)
  }

  const leave = (stream: Stream): void => {
    for (const group of groups.values()) {
      if (group.streams.delete(stream) && group.streams.size === 0) groups.delete(group.id)
    }
  }

  /** Ends what was subscribed to by tokens that have ended, and has the others go on as they are now. */
  const checkTokens = async (): Promise<void> => {
    if (groups.size === 0) return
    const found = await findByApiKeys(
      knex,
      [...groups.values()].map(({ token }) => token.apiKey),
    )
    for (const group of groups.values()) {
      try {
        group.token = stillMayRead(found.get(group.token.apiKey)?.token, clock.now())
      } catch (error) {
        end(group, error)
      }
    }
  }

  const end = (group: Group, error: unknown): void => {
    groups.delete(group.id)
    const told = group.told(error)
    for (const stream of group.streams) stream.complete(told)
  }

  /** Tells a group of what it is owed, as that is and as it may see it now. */
  const pay = async (group: Group, cursor: number): Promise<void> => {
    const ids = [...group.owed]
    try {
      for (let from = 0; from < ids.length && groups.get(group.id) === group; from += AT_ONCE) {
        const some = ids.slice(from, from + AT_ONCE)
        const results = await answer(group, some)
        for (const result of results) for (const stream of group.streams) stream.next(result, cursor)
        for (const id of some) group.owed.delete(id)
        boundMemory()
      }
    } catch (error) {
      // It is owed until the database can be had.
      if (isPassing(error as Error)) throw error
      end(group, error)
    }
  }

  const answer = async (
    { token, selector, answering }: Pick<Group, 'token' | 'selector' | 'answering'>,
    ids: string[],
  ) => {
    const { meter, answer } = answering(token)
    const related = visibleTo(token)
    const options = { related, now: clock.now(), meter }
    const query = { selector: whereAmong(ids, selector), limit: ids.length }
    const { rows } = await find(knex, deliveries, query, related(deliveries), options)
    return rows.length > 0 ? answer(rows) : []
  }

  const boundMemory = (): void => {
    const all = streams()
    let kept = all.reduce((sum, { keptBytes }) => sum + keptBytes, 0)
    if (kept <= MOST_KEPT_BYTES) return
    for (const stream of all.toSorted((a, b) => b.keptBytes - a.keptBytes)) {
      if (kept <= MOST_KEPT_BYTES) return
      kept -= stream.keptBytes
      stream.drop()
    }
  }

  return {
    rider: signs.rider,
    async ready(tokenId, giveUpAt) {
      const all = [...groups.values()]
      const count = (of: Group[]) => of.reduce((sum, { streams }) => sum + streams.size, 0)
      const own = all.filter(({ token }) => token.id === tokenId)
      if (isStopping || count(all) >= MOST_STREAMS || count(own) >= MOST_STREAMS / 2) {
        const message = 'Too many subscriptions are open at this server. Try again in 5 s.'
        throw new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: 5 })
      }
      askedAt = performance.now()
      if (changes) return
      await patiently(() => {
        beginning ??= begin().finally(() => {
          beginning = undefined
        })
        return beginning
      }, giveUpAt)
    },
    subscribe({ stream, missed, ...asked }) {
      // It took too long to come: it is to come again.
      if (!changes) return stream.breakOff()
      const own = [...groups.values()].filter(({ token }) => token.id === asked.token.id)
      const questions = new Set(own.map(({ key }) => key))
      if (questions.size >= MOST_QUESTIONS && !questions.has(asked.key)) return stream.complete(asked.told(tooMany()))
      const id = missed.length > 0 ? `${asked.key} ${randomUUID()}` : asked.key
      const group = groups.get(id) ?? { ...asked, id, streams: new Set(), owed: new Set(missed) }
      groups.set(id, group)
      group.streams.add(stream)
      stream.onClose(() => leave(stream))
      if (missed.length > 0) hurry()
    },
    hurry(deliveryId) {
      if (!changes) return
      if (deliveryId !== undefined) changes.settled(deliveryId)
      hurry()
    },
    stop() {
      isStopping = true
      woken.abort()
      for (const stream of streams()) stream.breakOff()
      groups.clear()
    },
  }
}

const stillMayRead = (token: AccessToken | undefined, now: number): AccessToken => {
  const ended = token ? endOf(token, now) : { reason: 'unknown_key' as const, message: 'The access token is gone.' }
  if (ended) throw new TidingsError('UNAUTHENTICATED', ended.message, { reason: ended.reason })
  requirePermission(token!, 'read')
  return token!
}

const tooMany = (): TidingsError =>
  new TidingsError(
    'QUERY_TOO_COMPLEX',
    `This access token has ${MOST_QUESTIONS} different subscriptions at this server. Subscriptions that ask for the ` +
      'same count as one: ask for fewer, with broader selectors.',
    { limit: MOST_QUESTIONS, budget: 'subscriptions' },
  )

/** What a selector matches among deliveries of some ids. */
export const whereAmong = (ids: readonly string[], selector: unknown): object =>
  alsoMatching({ id: { $in: ids } }, selector)

/**
 * A condition, and what a caller's selector says, if anything. An empty selector matches all as a whole, but as a part
 * of another it asks for what is equal to `{}`: CouchDB has it so.
 */
export const alsoMatching = (condition: object, selector: unknown): object =>
  isEmpty(selector) ? condition : { $and: [condition, selector] }

const isEmpty = (selector: unknown): boolean =>
  selector === undefined ||
  selector === null ||
  (typeof selector === 'object' && !Array.isArray(selector) && Object.keys(selector).length === 0)
