import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'

/** A forward proxy (CONNECT) on the way to endpoints, that opens a way only while it may. */
export type Tunnel = {
  url: string
  /** How many wait for their way to be opened. */
  waiting(): number
  /** From now on each waits until `open`. */
  shut(): void
  open(): void
  close(): void
}

export const startTunnel = async (): Promise<Tunnel> => {
  const waiting: (() => void)[] = []
  let isShut = false
  const server = createServer()
  server.on('connect', ({ url }, client, head) => {
    client.on('error', () => {})
    const [host, port] = url!.split(':')
    const open = () => {
      const upstream = connect(Number(port), host)
      upstream.on('error', () => client.destroy())
      upstream.on('connect', () => {
        client.write('HTTP/1.1 200 Connection Established\r\n\r\n')
        upstream.write(head)
        upstream.pipe(client).pipe(upstream)
      })
    }
    if (isShut) waiting.push(open)
    else open()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    waiting: () => waiting.length,
    shut() {
      isShut = true
    },
    open() {
      isShut = false
      for (const open of waiting.splice(0)) open()
    },
    close() {
      server.close()
      server.closeAllConnections()
    },
  }
}
