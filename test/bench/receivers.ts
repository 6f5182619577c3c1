import { startChild } from './child.ts'

/** Starts a number of endpoints in a process of their own. */
export const startReceivers = async (count: number) => {
  const child = await startChild('receiver.ts', [String(count)])
  const { ports } = child.first as { ports: number[] }
  return {
    urls: ports.map(port => `http://127.0.0.1:${port}/`),
    /** The project reports received since the last call, each with its time. */
    async arrivals() {
      const { arrivals } = (await child.ask({})) as { arrivals: [string, number][] }
      return arrivals
    },
    stop: child.stop,
  }
}
