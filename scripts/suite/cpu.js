import { readFileSync } from 'node:fs'

const CLOCK_TICKS_A_SECOND = 100

/** The processor seconds of this process, and of its children that have ended and theirs; 0 where there is no /proc. */
export const cpuS = () => {
  try {
    const stat = readFileSync('/proc/self/stat', 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / CLOCK_TICKS_A_SECOND
  } catch {
    return 0
  }
}
