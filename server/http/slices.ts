import type { IncomingMessage, RequestListener } from 'node:http'
import type { Socket } from 'node:net'
import { turnMs } from '../event-loop.ts'

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
  const isOver = () => turnMs() >= SLICE_MS

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
