/** The longest wait that Tidings accepts: 24 h. */
const LONGEST_SECONDS = 86_400

/**
 * Thrown by a handler to ask for a pause: the delivery is answered 429, and the webhook receives nothing for `seconds`.
 * This does not count as a failure.
 *
 * @example
 *   if (queue.isFull) throw new RetryLater(30)
 */
export class RetryLater extends Error {
  readonly seconds: number

  /** @throws RangeError unless `seconds` is from 0 to 86,400 */
  constructor(seconds: number) {
    // Tidings treats an unreadable Retry-After as none, and a 429 without one makes the webhook inactive.
    if (!(typeof seconds === 'number' && seconds >= 0 && seconds <= LONGEST_SECONDS)) {
      throw new RangeError(`${String(seconds)} is no number of seconds to wait, from 0 to ${LONGEST_SECONDS}.`)
    }
    super(`Not now: again in ${Math.ceil(seconds)} s.`)
    this.name = 'RetryLater'
    this.seconds = Math.ceil(seconds)
  }
}
