import type { IncomingMessage, RequestListener } from 'node:http'
import type { Socket } from 'node:net'
import { turnMs } from '../event-loop.ts'

/** How long requests are begun in a row before other work of the process has its turn. */
const SLICE_MS = 8
/**
 * The same for requests of new connections. An event takes a dozen turns of the loop until it is delivered, and each
 * would be longer by a slice of a crowd that has just come.
 */
const NEW_SLICE_MS = 1
/** One that has waited for so long is begun as any other, so that a crowd that stays is refused in time. */
const NEW_WAITS_MS = 500

type Arrived = Parameters<RequestListener>

const arrivals = new WeakMap<IncomingMessage, number>()

/** When a request arrived, by `performance.now()`; it may have waited since. */
export const arrivalOf = (request: IncomingMessage): number => arrivals.get(request) ?? performance.now()

/**
 * Begins requests in slices of a few milliseconds: however many arrive together, they do not hold the event loop.
 * Connections that have carried a request before and new ones take turns, each in the order of arrival, so that a crowd
 * of new connections does not come before everybody else; but each turn of the loop begins one of a new connection.
 */
export const inSlices = (handler: RequestListener, newWaitsMs = NEW_WAITS_MS): RequestListener => {
  const used = new WeakSet<Socket>()
  const [ofUsed, ofNew]: [Arrived[], Arrived[]] = [[], []]
  let isTurnOfNew = false
  let hasBegunNew = false

  /** `request`: the one whose turn it is. */
  const mayBegin = (isNew: boolean, [request]: Arrived): boolean => {
    const heldMs = turnMs()
    const isShort = isNew && performance.now() - arrivalOf(request) < newWaitsMs
    return heldMs < (isShort ? NEW_SLICE_MS : SLICE_MS) || (isNew && !hasBegunNew)
  }

  const begin = (arrived: Arrived, isNew: boolean): void => {
    if (isNew && !hasBegunNew) {
      hasBegunNew = true
      setImmediate(() => {
        hasBegunNew = false
      })
    }
    handler(...arrived)
  }

  /** One call for each waiting request, so that what a request does at once belongs to its slice. */
  const beginNext = (): void => {
    const kinds = isTurnOfNew ? [true, false] : [false, true]
    const isNew = kinds.find(isNew => {
      const [first] = isNew ? ofNew : ofUsed
      return first && mayBegin(isNew, first)
    })
    if (isNew === undefined) return void setImmediate(beginNext)
    isTurnOfNew = !isNew
    begin((isNew ? ofNew : ofUsed).shift()!, isNew)
  }

  return (...arrived) => {
    const [request] = arrived
    const { socket } = request
    arrivals.set(request, performance.now())
    const isNew = !used.has(socket)
    used.add(socket)
    const isWaiting = ofUsed.length + ofNew.length > 0
    if (!isWaiting && mayBegin(isNew, arrived)) return begin(arrived, isNew)
    ;(isNew ? ofNew : ofUsed).push(arrived)
    setImmediate(beginNext)
  }
}
