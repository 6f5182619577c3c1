import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently } from '../database/patience.ts'
import { otherWork } from '../database/turn.ts'
import type { Rider } from '../delivery/rider.ts'
import { findByApiKeys } from '../domain/access-tokens.ts'
import { type AccessToken, endOf, requirePermission } from '../domain/permissions.ts'
import { type Log, logSeldom } from '../log.ts'
import { Changes } from './changes.ts'
import { createSigns } from './signs.ts'
import { framesOf, type Stream } from './stream.ts'

/** The pause before a look after a change by this process. */
const HURRY_MS = 50
/** The time between two keep-alives, shorter than the timeout for unread answers. */
const BEAT_MS = 5_000
/** How soon a new subscriber is served. */
const COMING_MS = 20_000
/** Deliveries answered in one query, few enough not to delay others. */
const AT_ONCE = 100
/** Groups of one token that are answered at once. */
const MOST_ASKING_A_TOKEN = 4
/** The most deliveries that a group has yet to be told, and all groups; beyond that, clients have to reconnect. */
const MOST_OWED = 10_000
const MOST_OWED_IN_ALL = 300_000
/** As many are noted in a few milliseconds, before other work of the process has its turn. */
const OWED_A_TURN = 20_000
const MOST_STREAMS = 2_048
/** The most different subscriptions of one token: each costs a statement for every change. */
const MOST_QUESTIONS = 256
/** The loop rests this many times as long as a look took: the process has other work. */
const REST_PART = 3
/** How long streams are written in a row before other work of the process has its turn. */
const TURN_MS = 8
/** The most buffered bytes of all streams; beyond it, the streams that read least end. */
const MOST_KEPT_BYTES = 64 * 1024 * 1024

/** A subscription. Equal subscriptions of one token are answered together. */
export type Subscriber = {
  key: string
  token: AccessToken
  /**
   * The results for those of some deliveries that the subscription is about, in JSON, as they are now and as its token
   * sees them; or the result that ends it. Throws UNAVAILABLE if this is to be asked again, another error to end it.
   */
  answer(
    token: AccessToken,
    ids: string[],
    gone: AbortSignal,
  ): Promise<{ lines: string[]; refusal?: never } | { refusal: string; lines?: never }>
  /** The error that ends it, in JSON. */
  told(error: unknown): string
  stream: Stream
  /** Deliveries to send although they have not changed since. */
  missed: readonly string[]
}

/**
 * `id`: the key of its group, unless it has to catch up with the group first. `owed`: deliveries that it has yet to be
 * told.
 */
type Group = Omit<Subscriber, 'stream' | 'missed'> & {
  id: string
  streams: Set<Stream>
  owed: Set<string>
  /** While it is being told. */
  telling: AbortController | undefined
  /** When it was last told, by `performance.now()`. */
  toldAt: number
  atOnce: number
}

export type Live = {
  /** Reads the signs along with the delivery loop's query. */
  rider: Rider
  /** Throws UNAVAILABLE if there are too many subscribers, or the database is unavailable until `giveUpAt`. */
  ready(tokenId: string, giveUpAt: number): Promise<void>
  subscribe(subscriber: Subscriber): void
  /** Reports a change made in this process, such as of this delivery. */
  hurry(deliveryId?: string): void
  /** Ends all streams, so that their clients reconnect elsewhere. */
  stop(): void
}

/**
 * Reports deliveries to subscribers as they change. Each process queries the database for changes once for all its
 * subscribers, and only while there are subscribers and something happens. It queries what a subscriber may see only
 * when it has something to send.
 */
export const createLive = ({ database, clock, log }: { database: Database; clock: Clock; log: Log }): Live => {
  const { knex } = database
  const groups = new Map<string, Group>()
  let changes: Changes | undefined
  let beginning: Promise<void> | undefined
  let isStopping = false
  /** When the last subscriber came, by `performance.now()`. */
  let askedAt = Number.NEGATIVE_INFINITY
  const signs = createSigns(knex, clock)
  let woken = new AbortController()
  let isHurried = false
  /** All changes until then are owed to the groups, or told. */
  let cursor: number | undefined
  /** Resolves when all frames so far are written. */
  let written = Promise.resolve()

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
      for (const { streams, owed, telling } of groups.values())
        for (const stream of streams) stream.beat(owed.size === 0 && !telling ? cursor : undefined)
    }, BEAT_MS)
    signs.bring(() => woken.abort())
    let checkedAt = performance.now()
    /** The last sign that was seen. */
    let found = ''
    /** Until then it looks without a new sign, because a transaction begun before a sign may commit after it. */
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
        await oweAll(ids)
        cursor = isNeeded ? startedAt : (sign?.at ?? cursor)
        const isTime = performance.now() - checkedAt >= BEAT_MS && (startedAt < quietAt || hasExpired())
        if (isTime || [...groups.values()].some(({ owed }) => owed.size > 0)) {
          checkedAt = performance.now()
          await checkTokens()
        }
        for (const group of groups.values()) joinOthers(group)
        for (const of of Map.groupBy(groups.values(), ({ token }) => token.id).values()) tellSome(of)
      } catch (error) {
        // Changes announced by a sign may not be found yet.
        quietAt = clock.now() + changes!.findAllMs
        logSeldom(log, 'warn', 'live', { err: error }, 'changes cannot be told to subscribers; trying until they can')
      }
      await sleep(REST_PART * (performance.now() - lookedAt), undefined, { ref: false })
    }
    clearInterval(beating)
    signs.bring()
    changes = undefined
  }

  /** Waits for a sign, a change by this process, or the next query. Returns whether this process made a change. */
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

  const oweAll = async (ids: readonly string[]): Promise<void> => {
    let added = 0
    for (const { owed } of groups.values()) {
      for (const id of ids) owed.add(id)
      added += ids.length
      if (added < OWED_A_TURN) continue
      added = 0
      boundOwed()
      await otherWork()
    }
    boundOwed()
  }

  /** Ends the streams of groups that owe too much, those that owe most first. */
  const boundOwed = (): void => {
    const owing = [...groups.values()].filter(({ owed }) => owed.size > 0)
    let all = owing.reduce((sum, { owed }) => sum + owed.size, 0)
    if (all <= MOST_OWED) return
    for (const group of owing.sort((a, b) => b.owed.size - a.owed.size)) {
      if (all <= MOST_OWED_IN_ALL && group.owed.size <= MOST_OWED) return
      all -= group.owed.size
      forget(group)
      for (const stream of group.streams) stream.breakOff()
    }
  }

  const forget = (group: Group): void => {
    groups.delete(group.id)
    group.telling?.abort()
  }

  const isBehind = ({ owed, telling }: Group): boolean => owed.size > 0 || telling !== undefined

  /** A subscriber that has caught up joins the group with the same subscription. */
  const joinOthers = (group: Group): void => {
    if (group.id === group.key || groups.get(group.id) !== group || isBehind(group)) return
    const others = groups.get(group.key)
    if (others && isBehind(others)) return
    groups.delete(group.id)
    group.id = group.key
    if (!others) groups.set(group.key, group)
    else for (const stream of group.streams) others.streams.add(stream)
  }

  const leave = (stream: Stream): void => {
    for (const group of groups.values()) {
      if (group.streams.delete(stream) && group.streams.size === 0) forget(group)
    }
  }

  /** Ends the subscriptions of revoked or expired tokens, and updates the other tokens. */
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
        end(group, group.told(error))
      }
    }
  }

  const end = (group: Group, result: string): void => {
    forget(group)
    for (const stream of group.streams) stream.complete(result)
  }

  /** Begins to tell groups of one token what they are owed, those first that were told least recently. */
  const tellSome = (ofToken: Group[]): void => {
    let asking = ofToken.filter(({ telling }) => telling).length
    const owing = ofToken.filter(({ owed, telling }) => owed.size > 0 && !telling)
    for (const group of owing.sort((a, b) => a.toldAt - b.toldAt)) {
      if (asking >= MOST_ASKING_A_TOKEN) return
      asking += 1
      void tell(group)
    }
  }

  /** Tells a group of some changed deliveries, in their present state and as visible now. */
  const tell = async (group: Group): Promise<void> => {
    const telling = new AbortController()
    group.telling = telling
    const some = [...group.owed.values().take(group.atOnce)]
    for (const id of some) group.owed.delete(id)
    const until = group.owed.size === 0 ? cursor : undefined
    try {
      const { lines, refusal } = await group.answer(group.token, some, telling.signal)
      if (telling.signal.aborted) return
      if (lines) {
        await write(group, lines, until)
        if (until !== undefined) group.atOnce = AT_ONCE
      } else if (some.length === 1) end(group, refusal)
      else {
        // One of them may be too much beside the others.
        for (const id of some) group.owed.add(id)
        group.atOnce = 1
      }
    } catch (error) {
      if (telling.signal.aborted) return
      if ((error as { code?: unknown }).code !== 'UNAVAILABLE') return end(group, group.told(error))
      // The loop tries again.
      for (const id of some) group.owed.add(id)
      return
    } finally {
      group.telling = undefined
      group.toldAt = performance.now()
    }
    joinOthers(group)
    tellSome([...groups.values()].filter(({ token }) => token.id === group.token.id))
  }

  const write = (group: Group, results: readonly string[], until: number | undefined): Promise<void> => {
    for (const frame of framesOf(results, until)) written = written.then(() => writeFrame(group, frame))
    return written
  }

  const writeFrame = async ({ streams }: Group, frame: Buffer): Promise<void> => {
    let startedAt = performance.now()
    for (const stream of streams) {
      stream.next(frame)
      const tookMs = performance.now() - startedAt
      if (tookMs < TURN_MS) continue
      await sleep(tookMs)
      startedAt = performance.now()
    }
    boundMemory()
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
      // It took too long: the client has to reconnect.
      if (!changes) return stream.breakOff()
      const own = [...groups.values()].filter(({ token }) => token.id === asked.token.id)
      const questions = new Set(own.map(({ key }) => key))
      if (questions.size >= MOST_QUESTIONS && !questions.has(asked.key)) return stream.complete(asked.told(tooMany()))
      const id = missed.length > 0 ? `${asked.key} ${randomUUID()}` : asked.key
      const group: Group = groups.get(id) ?? {
        ...asked,
        id,
        streams: new Set(),
        owed: new Set(missed),
        telling: undefined,
        toldAt: 0,
        atOnce: AT_ONCE,
      }
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
      for (const group of groups.values()) forget(group)
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
    `This access token has ${MOST_QUESTIONS} different subscriptions at this server. Equal subscriptions count as ` +
      'one: use fewer different ones, with broader selectors.',
    { limit: MOST_QUESTIONS, budget: 'subscriptions' },
  )
