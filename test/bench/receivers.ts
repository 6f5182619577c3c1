import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

/** Starts so many endpoints, in a process of their own. */
export const startReceivers = async (count: number) => {
  const child = fork(fileURLToPath(new URL('receiver.ts', import.meta.url)), [String(count)], {
    execArgv: ['--disable-warning=ExperimentalWarning'],
  })
  const [{ ports }] = (await once(child, 'message')) as [{ ports: number[] }]
  return {
    urls: ports.map(port => `http://127.0.0.1:${port}/`),
    /** The project reports that have been told of since the last time, each with when. */
    async arrivals() {
      child.send('arrivals')
      const [{ arrivals }] = (await once(child, 'message')) as [{ arrivals: [string, number][] }]
      return arrivals
    },
    stop: () => child.disconnect(),
  }
}
