/** Whether this is `npm run test:all`, which has what takes too long for every day. */
export const isAtFullSize = process.env.TIDINGS_TEST_ALL === '1'

/** For the `skip` of what has no daily size. */
export const unlessFullSize = isAtFullSize ? false : 'only `npm run test:all` runs it'

/** One size for every day, and one for the night. */
export const atFullSize = <Size>(full: Size, daily: Size): Size => (isAtFullSize ? full : daily)
