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
