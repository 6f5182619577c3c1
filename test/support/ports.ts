import { randomInt } from 'node:crypto'
import { createServer, type ListenOptions, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'

/**
 * Below those that systems choose from for whoever asks for any port, and for connections: from 32,768 on. Above
 * 10,080, the last one that `fetch` refuses.
 */
const FIRST = 11_000
const LAST = 32_000

/**
 * A port of 127.0.0.1 that nobody listens on, and that no other test is given as long as this process lives: what is
 * still sent to a server or an endpoint that was closed arrives nowhere.
 */
export const freePort = async (): Promise<number> => {
  for (;;) {
    const port = randomInt(FIRST, LAST)
    if (!(await listenOn(placeOf(port)))) continue
    const probe = await listenOn({ host: '127.0.0.1', port })
    if (!probe) continue
    await new Promise(resolve => probe.close(resolve))
    return port
  }
}

/** Where this process listens to keep a port: a socket of the port's name, which ends with the process. */
const placeOf = (port: number): ListenOptions => {
  const name = `tidings-port-${port}`
  return { path: process.platform === 'linux' ? `\0${name}` : path.join(tmpdir(), name) }
}

/** Undefined where somebody else listens. */
const listenOn = (where: ListenOptions): Promise<Server | undefined> =>
  new Promise((resolve, reject) => {
    const server = createServer().unref()
    server.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(undefined) : reject(error),
    )
    server.listen(where, () => resolve(server))
  })
