import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

/** `does not answer`: connections stay and new ones are accepted, but nothing passes, as with a vanished host. */
export type Outage = 'refuses' | 'does not answer'

/** A proxy to a database server that a test can break. */
export type DatabaseProxy = {
  /** The database's address through this proxy. */
  url: string
  break(how: Outage): void
  mend(): void
  close(): void
}

export const startProxy = async (databaseUrl: string): Promise<DatabaseProxy> => {
  const { hostname, port } = new URL(databaseUrl)
  let broken: Outage | undefined
  const sockets = new Set<Socket>()
  const server = createServer(client => {
    if (broken === 'refuses') return void client.resetAndDestroy()
    const upstream = connect(Number(port), hostname)
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(from)
      from.on('data', chunk => to.write(chunk))
      from.on('error', () => {})
      from.on('close', () => {
        sockets.delete(from)
        to.destroy()
      })
      if (broken) from.pause()
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(databaseUrl)
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url: url.href,
    break(how) {
      broken = how
      for (const socket of sockets) {
        if (how === 'refuses') socket.resetAndDestroy()
        else socket.pause()
      }
    },
    mend() {
      broken = undefined
      for (const socket of sockets) socket.resume()
    },
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}
