/**
 * Milliseconds of processor time that this process spends while `work` runs. What else the machine does meanwhile does
 * not count, as it does in a time by the clock.
 */
export const cpuMsOf = async (work: () => unknown): Promise<number> => {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

/** The least that some rounds take of `cpuMsOf`: a collection of garbage falls into one of them, and not into all. */
export const leastCpuMsOf = async (work: () => unknown, times = 3): Promise<number> => {
  const rounds: number[] = []
  for (let round = 0; round < times; round++) rounds.push(await cpuMsOf(work))
  return Math.min(...rounds)
}

/**
 * How often what is done each second can have been done since `beganAt` (by `performance.now()`): a wait takes longer
 * than it was asked to on a busy machine.
 */
export const mostEachSecond = (beganAt: number): number => 1 + Math.floor((performance.now() - beganAt) / 1000)
