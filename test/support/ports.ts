import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

/**
 * Below those that systems choose from for whoever asks for any port, and for connections: from 32,768 on. Above
 * 10,080, the last one that `fetch` refuses.
 */
const FIRST = 11_000
const LAST = 32_000

/** A port of 127.0.0.1 that nobody listens on. Few others can come to have it before it is listened on. */
export const freePort = async (): Promise<number> => {
  for (;;) {
    const port = randomInt(FIRST, LAST)
    if (await isFree(port)) return port
  }
}

const isFree = (port: number): Promise<boolean> =>
  new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(false) : reject(error),
    )
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)))
  })
