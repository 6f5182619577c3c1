/** Whether this is `npm run test:all`, which has what takes too long for every day. */
export const isAtFullSize = process.env.TIDINGS_TEST_ALL === '1'

/** For the `skip` of what has no daily size. */
export const unlessFullSize = isAtFullSize ? false : 'only `npm run test:all` runs it'

/** All of them for the night, and for every day each `n`th, beginning with the first. */
export const everyNth = <Each>(n: number, all: readonly Each[]): readonly Each[] =>
  isAtFullSize ? all : all.filter((_, index) => index % n === 0)

/** One size for every day, and one for the night. */
export const atFullSize = <Size>(full: Size, daily: Size): Size => (isAtFullSize ? full : daily)
