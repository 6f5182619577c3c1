import { setTimeout as delay } from 'node:timers/promises'
import type { Ask } from '../../connection/client.ts'
import type { openLive } from '../../connection/live.ts'
import { CliError } from '../../errors.ts'
import type { Colours } from '../../output/output.ts'
import type { DeliveryAtAGlance } from '../../resources/timeline.ts'
import type { Viewer } from '../../resources/viewer.ts'
import { perform, progressOf } from './actions.ts'
import { lookAtDeliveries, lookAtWebhooks, olderDeliveries } from './feed.ts'
import { type Effect, paste, press, type Sizes } from './keys.ts'
import { lookAtLastDay } from './last-day.ts'
import { afterLook, afterOlder } from './looks.ts'
import { type Link, Poll, Restraint } from './poll.ts'
import {
  type Action,
  type Filters,
  initialState,
  listedWebhooks,
  type Notice,
  type State,
  selectorOf,
  wantedOf,
} from './state.ts'

/** The polling interval while something happens or keys are pressed: 80 requests a minute. */
const BUSY = { deliveriesMs: 1_000, webhooksMs: 3_000 }
/** The interval while nothing happens: 24 requests a minute. */
const QUIET = { deliveriesMs: 3_000, webhooksMs: 15_000 }
/** The interval while the server reports changes by itself. */
const TOLD_MS = 15_000
const QUIET_AFTER_MS = 30_000
/** The last day of the webhooks is counted so often. */
const LAST_DAY_MS = 60_000
/** The screen is drawn every second for countdowns. */
const TICK_MS = 1_000

/** The pause before subscribing again. */
const HEAR_AGAIN_MS = 5_000

type Live = (signal: AbortSignal) => ReturnType<typeof openLive<unknown>>
/** The requests to the server, and its subscription. */
type Asking = { ask: Ask; look: Ask; live: Live }

/** The dashboard without its screen: its state, its keys, and its requests to the server. */
export class Dashboard {
  #state: State
  /** For actions of keys, with the time limit of a command. */
  readonly #ask: Ask
  /** For polling, with a shorter time limit. */
  readonly #look: Ask
  readonly #live: Live
  readonly #ending = new AbortController()
  /** Whether the server reports deliveries by itself; polling then only covers the rest. */
  #isLive = false
  #soon: NodeJS.Timeout | undefined
  #lookedAtMs = Number.NEGATIVE_INFINITY
  readonly #colours: Colours
  readonly #listeners = new Set<() => void>()
  readonly #deliveries: Poll
  readonly #webhooks: Poll
  readonly #lastDay: Poll
  #ticking: NodeJS.Timeout | undefined
  #sizes: Sizes = { webhookRows: 1, deliveryRows: 1, detailsRows: 1, detailsLines: 1, wide: false }
  #shown: DeliveryAtAGlance[] = []
  #changedAtMs = Date.now()
  #loadingOlder = false
  /** Set by `start`; called when a key quits. */
  #quit: () => void = () => {}

  constructor({ ask, look, live }: Asking, viewer: Viewer, filters: Filters, colours: Colours) {
    this.#ask = ask
    this.#look = look
    this.#live = live
    this.#colours = colours
    this.#state = initialState(viewer, filters, Date.now())
    const restraint = new Restraint()
    const tell = (link: Link) => this.#set({ link })
    this.#deliveries = new Poll({
      look: () => this.#lookAtDeliveries(),
      intervalMs: () => this.#pace.deliveriesMs,
      restraint,
      tell,
    })
    this.#webhooks = new Poll({
      look: () => this.#lookAtWebhooks(),
      intervalMs: () => this.#pace.webhooksMs,
      restraint,
      // The other poll reports the failure, because it notices sooner.
      tell: ({ kind }) => {
        if (kind === 'live') this.#set({ webhooksSeenAtMs: Date.now() })
      },
    })
    this.#lastDay = new Poll({
      look: () => this.#lookAtLastDay(),
      intervalMs: () => LAST_DAY_MS,
      restraint,
      // The lines are absent or of a minute ago; the other polls report why.
      tell: () => {},
    })
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
  readonly read = (): State => this.#state

  start(quit: () => void): void {
    this.#quit = quit
    this.#deliveries.now()
    this.#webhooks.now()
    void this.#hear()
    this.#ticking = setInterval(() => this.#set({ nowMs: Date.now() }), TICK_MS)
  }

  stop(): void {
    this.#ending.abort()
    clearTimeout(this.#soon)
    this.#deliveries.stop()
    this.#webhooks.stop()
    this.#lastDay.stop()
    clearInterval(this.#ticking)
  }

  /** Sets the screen's room and the shown rows; call it after each drawing. */
  drawn(sizes: Sizes, shown: DeliveryAtAGlance[]): void {
    this.#sizes = sizes
    this.#shown = shown
  }

  press(key: string): void {
    this.#changedAtMs = Date.now()
    const { state, effect } = press(this.#state, key, this.#sizes)
    this.#set(state)
    if (effect) this.#follow(effect)
  }

  paste(text: string): void {
    this.#set(paste(this.#state, text))
  }

  #follow(effect: Effect): void {
    if (effect === 'quit') this.#quit()
    else if (effect === 'look') this.#deliveries.now()
    else if (effect === 'older') void this.#loadOlder()
    else void this.#perform(effect.perform)
  }

  get #pace(): typeof BUSY {
    const pace = Date.now() - this.#changedAtMs < QUIET_AFTER_MS ? BUSY : QUIET
    return this.#isLive ? { ...pace, deliveriesMs: TOLD_MS } : pace
  }

  /** Polls when the server reports a change, as long as it does; otherwise at its own interval. */
  async #hear(): Promise<void> {
    const { signal } = this.#ending
    while (!signal.aborted) {
      try {
        const heard = await this.#live(signal)
        this.#isLive = true
        this.#deliveries.now()
        for await (const _ of heard) {
          // Changes close together cause one poll, and no more polls than without reports.
          this.#soon ??= setTimeout(() => {
            this.#soon = undefined
            this.#deliveries.now()
          }, this.#soonMs())
        }
      } catch (error) {
        // The polls, which go on, report what is wrong.
        if (!(error instanceof CliError)) throw error
      }
      this.#isLive = false
      this.#deliveries.now()
      await delay(HEAR_AGAIN_MS, undefined, { signal, ref: false }).catch(() => {})
    }
  }

  #soonMs(): number {
    return Math.max(0, this.#lookedAtMs + BUSY.deliveriesMs - performance.now())
  }

  async #lookAtWebhooks(): Promise<void> {
    const isFirst = this.#state.webhooks === undefined
    this.#set({ webhooks: await lookAtWebhooks(this.#look) })
    if (isFirst) this.#lastDay.now()
  }

  async #lookAtLastDay(): Promise<void> {
    const ids = listedWebhooks(this.#state).map(({ id }) => id)
    this.#set({ lastDay: await lookAtLastDay(this.#look, ids, Date.now()) })
  }

  async #lookAtDeliveries(): Promise<void> {
    this.#lookedAtMs = performance.now()
    const asked = JSON.stringify(selectorOf(this.#state))
    const detailsShown = this.#sizes.wide || this.#state.focus === 'details'
    this.#set({ lookingSinceMs: Date.now() })
    const look = await lookAtDeliveries(this.#look, wantedOf(this.#state, this.#shown, detailsShown)).finally(() =>
      this.#set({ lookingSinceMs: undefined }),
    )
    // The filters may have changed meanwhile; then another request is under way.
    if (JSON.stringify(selectorOf(this.#state)) !== asked) return
    const before = this.#state
    const after = afterLook(before, look, Date.now())
    if (after.newest?.id !== before.newest?.id) this.#changedAtMs = Date.now()
    this.#set(after)
  }

  async #loadOlder(): Promise<void> {
    const selector = selectorOf(this.#state)
    const last = this.#state.deliveries?.at(-1)
    if (this.#loadingOlder || !selector || !last) return
    this.#loadingOlder = true
    try {
      const page = await olderDeliveries(this.#ask, selector, last.id)
      if (this.#state.deliveries?.at(-1)?.id === last.id) this.#set(afterOlder(this.#state, page))
    } catch (error) {
      this.#notify(failureOf(error))
    } finally {
      this.#loadingOlder = false
    }
  }

  async #perform(action: Action): Promise<void> {
    this.#notify({ text: progressOf(action), tone: 'busy' })
    try {
      const { text, good, deliveryId } = await perform(this.#ask, action, this.#colours)
      this.#notify({ text, tone: good ? 'good' : 'bad' })
      // Selects the created delivery, to show its timeline.
      if (deliveryId !== undefined) {
        this.#set({
          deliveryId,
          timeline: undefined,
          detailsOf: 'deliveries',
          deliveries: undefined,
          newer: 0,
          scrolled: 0,
        })
      }
    } catch (error) {
      this.#notify(failureOf(error))
    }
    this.#deliveries.now()
    this.#webhooks.now()
  }

  #notify(notice: Notice): void {
    this.#set({ notice })
  }

  #set(changes: Partial<State>): void {
    this.#state = { ...this.#state, ...changes }
    for (const listener of this.#listeners) listener()
  }
}

const failureOf = (error: unknown): Notice => {
  if (!(error instanceof CliError)) throw error
  return { text: error.hint ? `${error.message} ${error.hint}` : error.message, tone: 'bad' }
}
