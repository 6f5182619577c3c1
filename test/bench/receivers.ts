import { startChild } from './child.ts'
import type { StartPullers } from './pullers.ts'

/** Starts a number of endpoints in a process of their own. */
export const startReceivers = async (count: number) => {
  const child = await startChild('receiver.ts', [String(count)])
  const { ports } = child.first as { ports: number[] }
  return {
    urls: ports.map(port => `http://127.0.0.1:${port}/`),
    pid: child.pid,
    /** The project reports received since the last call, each with its time. */
    async arrivals() {
      const { arrivals } = (await child.ask({})) as { arrivals: [string, number][] }
      return arrivals
    },
    stop: child.stop,
  }
}

/** Starts clients that pull, in a process of their own, once `start` names their webhook. */
export const startPullers = async () => {
  const child = await startChild('pullers.ts')
  return {
    pid: child.pid,
    start: (given: Omit<StartPullers, 'kind'>) => child.tell({ kind: 'start', ...given } satisfies StartPullers),
    async arrivals() {
      const { arrivals } = (await child.ask({ kind: 'arrivals' })) as { arrivals: [string, number][] }
      return arrivals
    },
    stop: child.stop,
  }
}
