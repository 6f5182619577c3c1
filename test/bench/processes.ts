import { readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'

// CPU and memory of processes, read from /proc.

/** A clock tick of the kernel is a hundredth of a second wherever Linux runs Node. */
const MS_A_TICK = 10

type Stat = { pid: number; parent: number; ticks: number; ownTicks: number }

const statOf = (pid: number): Stat | undefined => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The name is in brackets and may hold spaces.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    const [user, system, childrensUser, childrensSystem] = fields.slice(11, 15).map(Number) as [
      number,
      number,
      number,
      number,
    ]
    const ownTicks = user + system
    return { pid, parent: Number(fields[1]), ticks: ownTicks + childrensUser + childrensSystem, ownTicks }
  } catch {
    return undefined
  }
}

const allPids = (): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)

/**
 * User and system time of a process, its threads and its children, the ended ones included, in milliseconds; 0 if there
 * is none.
 */
export const cpuMs = (pid: number): number =>
  treeOf(pid).reduce((sum, each) => sum + (statOf(each)?.ticks ?? 0) * MS_A_TICK, 0)

/** The same of the process without its children. */
export const ownCpuMs = (pid: number): number => (statOf(pid)?.ownTicks ?? 0) * MS_A_TICK

/** A process and all that descend from it. */
export const treeOf = (pid: number): number[] => {
  const stats = allPids().flatMap(each => statOf(each) ?? [])
  const tree = new Set([pid])
  for (let size = 0; size < tree.size; ) {
    size = tree.size
    for (const stat of stats) if (tree.has(stat.parent)) tree.add(stat.pid)
  }
  return [...tree]
}

/** The process of a database server on this machine, if it can be seen. */
export const databasePidOf = (url: string): number | undefined =>
  url.startsWith('sqlite') ? undefined : pidListeningOn(Number(new URL(url).port || 3306))

/** The process of this machine that listens on a TCP port, if it can be seen. */
const pidListeningOn = (port: number): number | undefined => {
  const inodes = new Set(['/proc/net/tcp', '/proc/net/tcp6'].flatMap(file => listeningInodes(file, port)))
  return allPids().find(pid => {
    try {
      return readdirSync(`/proc/${pid}/fd`).some(fd => {
        const [, inode] = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`)) ?? []
        return inode !== undefined && inodes.has(inode)
      })
    } catch {
      return false
    }
  })
}

const LISTENING = '0A'

const listeningInodes = (file: string, port: number): string[] =>
  readFileSync(file, 'utf8')
    .split('\n')
    .slice(1)
    .flatMap(line => {
      const fields = line.trim().split(/\s+/)
      const isIt = fields[3] === LISTENING && Number.parseInt(fields[1]!.split(':').at(-1)!, 16) === port
      return isIt ? [fields[9]!] : []
    })

/**
 * Resident memory in MB of a process and its descendants: now, and an upper bound of the peak since `resetPeak`,
 * because the peaks may be at different times. Undefined if the process is gone.
 */
export const memoryMb = (pid: number): { now: number; peak: number } | undefined => {
  const memory = memoryByProcess(pid)
  if (!memory.has(pid)) return undefined
  const all = [...memory.values()]
  return { now: sum(all.map(({ now }) => now)), peak: sum(all.map(({ peak }) => peak)) }
}

/** The same for each of the processes. */
export const memoryByProcess = (pid: number): Map<number, { now: number; peak: number }> =>
  new Map(
    treeOf(pid).flatMap(each => {
      const memory = ownMemoryMb(each)
      return memory ? [[each, memory] as const] : []
    }),
  )

const sum = (values: number[]): number => values.reduce((total, value) => total + value, 0)

const ownMemoryMb = (pid: number): { now: number; peak: number } | undefined => {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    const mb = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)![1]) / 1024
    return { now: mb('VmRSS'), peak: mb('VmHWM') }
  } catch {
    return undefined
  }
}

/** Resets the peak memory. */
export const resetPeak = (pid: number): void => {
  for (const each of treeOf(pid)) writeFileSync(`/proc/${each}/clear_refs`, '5')
}
