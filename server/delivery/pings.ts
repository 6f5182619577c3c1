import { TidingsError } from '../../shared/errors.ts'
import { Turns } from '../turns.ts'

// Pings, on registration and on demand, have separate places, so that slow endpoints take no places from deliveries. A
// token may have few in flight, and a webhook fewer. Some more wait for a limited time; tokens take turns.

const OF_TOKEN = 4
const OF_WEBHOOK = 2
const WAITING_OF_TOKEN = 1_000
const WAIT_MS = 5_000

/** The owner of a ping, and its webhook. */
type Pinger = { tokenId: string; webhookId: string }

type Given = { concurrency: number }

/** @param concurrency the most attempts in flight; in addition, an eighth as many pings may be in flight */
export class Pings {
  readonly #concurrency: Given['concurrency']
  readonly #size
  readonly #inFlight = new Set<Pinger>()
  readonly #waiting = new Turns<{ pinger: Pinger; start: () => void }>()

  constructor({ concurrency }: Given) {
    this.#concurrency = concurrency
    this.#size = Math.max(OF_TOKEN, this.#concurrency / 8)
  }

  /** Runs a ping in one of the places. Throws RATE_LIMITED if none becomes free in time. */
  async run<T>(pinger: Pinger, ping: () => Promise<T>): Promise<T> {
    const own = { ...pinger }
    await this.#turn(own)
    try {
      return await ping()
    } finally {
      this.#inFlight.delete(own)
      this.#startWaiting()
    }
  }

  #countOf(is: (pinger: Pinger) => boolean): number {
    return [...this.#inFlight].filter(is).length
  }

  #mayStart({ tokenId, webhookId }: Pinger): boolean {
    const own = this.#countOf(pinger => pinger.tokenId === tokenId)
    const free = this.#size - this.#inFlight.size
    return (
      free > 0 &&
      own < Math.min(OF_TOKEN, Math.max(1, free)) &&
      this.#countOf(pinger => pinger.webhookId === webhookId) < OF_WEBHOOK
    )
  }

  #startWaiting(): void {
    for (let next = this.#takeNext(); next; next = this.#takeNext()) {
      this.#inFlight.add(next.pinger)
      next.start()
    }
  }

  #takeNext() {
    return this.#waiting.take(({ pinger }) => this.#mayStart(pinger))
  }

  #turn(pinger: Pinger): Promise<void> {
    const { tokenId } = pinger
    if (this.#mayStart(pinger)) {
      this.#inFlight.add(pinger)
      return Promise.resolve()
    }
    if (this.#waiting.of(tokenId).size >= WAITING_OF_TOKEN) return Promise.reject(this.#refusal(pinger))
    return new Promise((resolve, reject) => {
      const entry = { pinger, start: () => resolve(clearTimeout(timer)) }
      const timer = setTimeout(() => {
        this.#waiting.delete(tokenId, entry)
        reject(this.#refusal(pinger))
      }, WAIT_MS)
      this.#waiting.add(tokenId, entry)
    })
  }

  #refusal({ tokenId, webhookId }: Pinger): TidingsError {
    const ofWebhook = this.#countOf(pinger => pinger.webhookId === webhookId)
    const ofToken = this.#countOf(pinger => pinger.tokenId === tokenId)
    const [count, whose, limit] =
      ofWebhook >= OF_WEBHOOK
        ? [ofWebhook, 'this webhook', OF_WEBHOOK]
        : ofToken >= OF_TOKEN
          ? [ofToken, 'this access token', OF_TOKEN]
          : [this.#inFlight.size, 'all access tokens', Math.floor(this.#size)]
    return new TidingsError(
      'RATE_LIMITED',
      `${count} pings of ${whose} are waiting for an answer; at most ${limit} may wait at once. Nothing was sent. ` +
        'Try again when they are answered, after at most 15 s.',
      { limit, retryAfterSeconds: 15 },
    )
  }
}
