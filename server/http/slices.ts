import type { IncomingMessage, RequestListener } from 'node:http'
import type { Socket } from 'node:net'

/** How long requests are begun in a row before other work of the process has its turn. */
const SLICE_MS = 8

type Arrived = Parameters<RequestListener>

const arrivals = new WeakMap<IncomingMessage, number>()

/** When a request arrived, by `performance.now()`; it may have waited since. */
export const arrivalOf = (request: IncomingMessage): number => arrivals.get(request) ?? performance.now()

/**
 * Begins requests in slices of a few milliseconds: however many arrive together, they do not hold the event loop.
 * Connections that have carried a request before and new ones take turns, each in the order of arrival, so that a crowd
 * of new connections does not come before everybody else.
 */
export const inSlices = (handler: RequestListener): RequestListener => {
  const used = new WeakSet<Socket>()
  let [now, next]: [Arrived[], Arrived[]] = [[], []]
  const ofUsed = now
  const ofNew = next
  let since: number | undefined

  const isOver = (): boolean => {
    if (since !== undefined) return performance.now() - since >= SLICE_MS
    since = performance.now()
    setImmediate(() => {
      since = undefined
    })
    return false
  }

  // One call for each waiting request, so that what a request does at once belongs to its slice.
  const beginNext = (): void => {
    if (isOver()) return void setImmediate(beginNext)
    const arrived = now.shift() ?? next.shift()!
    ;[now, next] = [next, now]
    handler(...arrived)
  }

  return (...arrived) => {
    const [request] = arrived
    const { socket } = request
    arrivals.set(request, performance.now())
    const isWaiting = ofUsed.length + ofNew.length > 0
    const queue = used.has(socket) ? ofUsed : ofNew
    used.add(socket)
    if (!isWaiting && !isOver()) return void handler(...arrived)
    queue.push(arrived)
    setImmediate(beginNext)
  }
}
