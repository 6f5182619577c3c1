/** The service waits no longer than this, 24 h. */
const LONGEST_SECONDS = 86_400

/**
 * Thrown by a handler: the delivery is answered 429, and nothing
 * comes to the webhook for so many seconds. It is no failure.
 */
export class RetryLater extends Error {
  readonly seconds: number

  /** @throws RangeError unless `seconds` is from 0 to 86,400 */
  constructor(seconds: number) {
    // What the service cannot read counts as no Retry-After, which makes the webhook inactive.
    if (!(typeof seconds === 'number' && seconds >= 0 && seconds <= LONGEST_SECONDS)) {
      throw new RangeError(`${String(seconds)} is no number of seconds to wait, from 0 to ${LONGEST_SECONDS}.`)
    }
    super(`Not now: again in ${Math.ceil(seconds)} s.`)
    this.name = 'RetryLater'
    this.seconds = Math.ceil(seconds)
  }
}
