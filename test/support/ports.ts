import { randomInt } from 'node:crypto'
import { createServer, type ListenOptions } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'

/**
 * Below those that systems choose from for whoever asks for any port, and for connections: from 32,768 on. Above
 * 10,080, the last one that `fetch` refuses.
 */
const FIRST = 11_000
const LAST = 32_000

/** A port of 127.0.0.1 that nobody listens on, and that no other test is given as long as this process lives. */
export const freePort = async (): Promise<number> => {
  for (;;) {
    const port = randomInt(FIRST, LAST)
    if ((await isFree({ host: '127.0.0.1', port })) && (await reserve(port))) return port
  }
}

/** By a socket of the port's name, which ends with its process. */
const reserve = (port: number): Promise<boolean> => {
  const name = `tidings-port-${port}`
  return isFree({ path: process.platform === 'linux' ? `\0${name}` : path.join(tmpdir(), name) }, { isKept: true })
}

const isFree = (where: ListenOptions, { isKept = false } = {}): Promise<boolean> =>
  new Promise((resolve, reject) => {
    const probe = createServer().unref()
    probe.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(false) : reject(error),
    )
    probe.listen(where, () => {
      if (isKept) resolve(true)
      else probe.close(() => resolve(true))
    })
  })
