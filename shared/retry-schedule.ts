/**
 * The waits after successive failures of a delivery, in milliseconds: 5, 10, 20 … 2560 s. One wait per retry, so a
 * delivery is attempted at most eleven times.
 */
export const RETRY_SCHEDULE_MS: readonly number[] = Array.from({ length: 10 }, (_, index) => 5000 * 2 ** index)

const LONGEST_WAIT_SECONDS = 7 * 24 * 60 * 60
const SECONDS = /^\d+(\.\d+)?$/

/**
 * Reads a schedule written as seconds separated by commas,
 * fractions allowed (`5,10,20` or `0.1,0.2`), into milliseconds.
 *
 * @throws RangeError naming every part that is not such a number, and what would be right
 */
export const parseRetrySchedule = (text: string): number[] => {
  const parts = text.split(',').map(part => part.trim())
  const wrong = parts.filter(part => !SECONDS.test(part) || Number(part) > LONGEST_WAIT_SECONDS)
  if (wrong.length > 0) {
    throw new RangeError(
      `${wrong.map(part => JSON.stringify(part)).join(', ')}: expected the waits between attempts in seconds, ` +
        'separated by commas, ' +
        `fractions allowed, each at most ${LONGEST_WAIT_SECONDS} (a week), as in 5,10,20,40`,
    )
  }
  return parts.map(part => Math.round(Number(part) * 1000))
}
