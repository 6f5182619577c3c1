import { randomUUID } from 'node:crypto'
import type { AccessToken } from '../domain/permissions.ts'
import { otherWork } from '../event-loop.ts'
import type { Stream } from './stream.ts'

/** The most deliveries that a group has yet to be told, and all groups; beyond that, clients have to reconnect. */
export const MOST_OWED = 10_000
const MOST_OWED_IN_ALL = 300_000
/** As many are noted in a few milliseconds, before other work of the process has its turn. */
const OWED_A_TURN = 20_000
/** Deliveries answered in one query, few enough not to delay others. */
export const AT_ONCE = 100

export type Answer = { lines: string[]; refusal?: never } | { refusal: string; lines?: never }

/** A subscription. Equal subscriptions of one token are answered together. */
export type Subscriber = {
  key: string
  token: AccessToken
  /**
   * The results for those of some deliveries that the subscription is about, in JSON, as they are now and as its token
   * sees them; or the result that ends it. Throws UNAVAILABLE if this is to be asked again, another error to end it.
   */
  answer(token: AccessToken, ids: string[], gone: AbortSignal): Promise<Answer>
  /** The error that ends it, in JSON. */
  asError(error: unknown): string
  stream: Stream
  /** Deliveries to send although they have not changed since. */
  missed: readonly string[]
}

/**
 * `id`: the key of its group, unless it has to catch up with the group first. `owed`: deliveries that it has yet to be
 * told.
 */
export type Group = Omit<Subscriber, 'stream' | 'missed'> & {
  id: string
  streams: Set<Stream>
  owed: Set<string>
  /** While it is being told. */
  telling: AbortController | undefined
  /** When it was last told, by `performance.now()`. */
  toldAt: number
  atOnce: number
}

/** The subscriptions of a process, equal ones of one token in one group, and what each group has yet to be told. */
export class Groups {
  readonly #byId = new Map<string, Group>()

  get all(): Group[] {
    return [...this.#byId.values()]
  }

  of(tokenId: string): Group[] {
    return this.all.filter(({ token }) => token.id === tokenId)
  }

  get streams(): Stream[] {
    return this.all.flatMap(group => [...group.streams])
  }

  add({ stream, missed, ...asked }: Subscriber): void {
    const id = missed.length > 0 ? `${asked.key} ${randomUUID()}` : asked.key
    const group: Group = this.#byId.get(id) ?? {
      ...asked,
      id,
      streams: new Set(),
      owed: new Set(missed),
      telling: undefined,
      toldAt: 0,
      atOnce: AT_ONCE,
    }
    this.#byId.set(id, group)
    group.streams.add(stream)
    stream.onClose(() => this.#leave(stream))
  }

  async oweAll(ids: readonly string[]): Promise<void> {
    let added = 0
    for (const { owed } of this.all) {
      for (const id of ids) owed.add(id)
      added += ids.length
      if (added < OWED_A_TURN) continue
      added = 0
      this.#boundOwed()
      await otherWork()
    }
    this.#boundOwed()
  }

  /** Ends the streams of groups that owe too much, those that owe most first. */
  #boundOwed(): void {
    const owing = this.all.filter(({ owed }) => owed.size > 0)
    let all = owing.reduce((sum, { owed }) => sum + owed.size, 0)
    if (all <= MOST_OWED) return
    for (const group of owing.sort((a, b) => b.owed.size - a.owed.size)) {
      if (all <= MOST_OWED_IN_ALL && group.owed.size <= MOST_OWED) return
      all -= group.owed.size
      this.#forget(group)
      for (const stream of group.streams) stream.breakOff()
    }
  }

  /** A subscriber that has caught up joins the group with the same subscription. */
  join(group: Group): void {
    if (group.id === group.key || this.#byId.get(group.id) !== group || isBehind(group)) return
    const others = this.#byId.get(group.key)
    if (others && isBehind(others)) return
    this.#byId.delete(group.id)
    group.id = group.key
    if (!others) this.#byId.set(group.key, group)
    else for (const stream of group.streams) others.streams.add(stream)
  }

  /** Sends keep-alives; those that have nothing to be told say until when nothing was missed. */
  beat(cursor: number): void {
    for (const group of this.all) {
      for (const stream of group.streams) stream.beat(isBehind(group) ? undefined : cursor)
    }
  }

  end(group: Group, result: string): void {
    this.#forget(group)
    for (const stream of group.streams) stream.complete(result)
  }

  /** Ends all, so that their clients reconnect elsewhere. */
  breakOff(): void {
    for (const stream of this.streams) stream.breakOff()
    for (const group of this.all) this.#forget(group)
  }

  #leave(stream: Stream): void {
    for (const group of this.all) {
      if (group.streams.delete(stream) && group.streams.size === 0) this.#forget(group)
    }
  }

  #forget(group: Group): void {
    this.#byId.delete(group.id)
    group.telling?.abort()
  }
}

const isBehind = ({ owed, telling }: Group): boolean => owed.size > 0 || telling !== undefined
