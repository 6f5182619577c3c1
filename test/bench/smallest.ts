/** A size, or a duration, of a benchmark; and the one with which the tests see that it runs (`BENCH_SMALLEST`). */
export const unlessSmallest = <Size>(full: Size, smallest: Size): Size =>
  process.env.BENCH_SMALLEST === '1' ? smallest : full
