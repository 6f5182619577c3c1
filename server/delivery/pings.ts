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

export type Pings = ReturnType<typeof createPings>

/** @param concurrency the most attempts in flight; in addition, an eighth as many pings may be in flight */
export const createPings = ({ concurrency }: { concurrency: number }) => {
  const size = Math.max(OF_TOKEN, concurrency / 8)
  const inFlight = new Set<Pinger>()
  const waiting = new Turns<{ pinger: Pinger; start: () => void }>()

  const countOf = (is: (pinger: Pinger) => boolean): number => [...inFlight].filter(is).length

  const mayStart = ({ tokenId, webhookId }: Pinger): boolean => {
    const own = countOf(pinger => pinger.tokenId === tokenId)
    const free = size - inFlight.size
    return (
      free > 0 &&
      own < Math.min(OF_TOKEN, Math.max(1, free)) &&
      countOf(pinger => pinger.webhookId === webhookId) < OF_WEBHOOK
    )
  }

  const startWaiting = (): void => {
    for (let next = takeNext(); next; next = takeNext()) {
      inFlight.add(next.pinger)
      next.start()
    }
  }
  const takeNext = () => waiting.take(({ pinger }) => mayStart(pinger))

  const turn = (pinger: Pinger): Promise<void> => {
    const { tokenId } = pinger
    if (mayStart(pinger)) {
      inFlight.add(pinger)
      return Promise.resolve()
    }
    if (waiting.of(tokenId).size >= WAITING_OF_TOKEN) return Promise.reject(refusal(pinger))
    return new Promise((resolve, reject) => {
      const entry = { pinger, start: () => resolve(clearTimeout(timer)) }
      const timer = setTimeout(() => {
        waiting.delete(tokenId, entry)
        reject(refusal(pinger))
      }, WAIT_MS)
      waiting.add(tokenId, entry)
    })
  }

  const refusal = ({ tokenId, webhookId }: Pinger): TidingsError => {
    const ofWebhook = countOf(pinger => pinger.webhookId === webhookId)
    const ofToken = countOf(pinger => pinger.tokenId === tokenId)
    const [count, whose, limit] =
      ofWebhook >= OF_WEBHOOK
        ? [ofWebhook, 'this webhook', OF_WEBHOOK]
        : ofToken >= OF_TOKEN
          ? [ofToken, 'this access token', OF_TOKEN]
          : [inFlight.size, 'all access tokens', Math.floor(size)]
    return new TidingsError(
      'RATE_LIMITED',
      `${count} pings of ${whose} are waiting for an answer; at most ${limit} may wait at once. Nothing was sent. ` +
        'Try again when they are answered, after at most 15 s.',
      { limit, retryAfterSeconds: 15 },
    )
  }

  return {
    /** Runs a ping in one of the places. Throws RATE_LIMITED if none becomes free in time. */
    async run<T>(pinger: Pinger, ping: () => Promise<T>): Promise<T> {
      const own = { ...pinger }
      await turn(own)
      try {
        return await ping()
      } finally {
        inFlight.delete(own)
        startWaiting()
      }
    },
  }
}
