import type { AddressInfo, Server, Socket } from 'node:net'
import type { TestContext } from 'node:test'

/** The port of loopback that a server listens on, until its test has ended; then its connections are gone too. */
export const listening = async (t: TestContext, server: Server): Promise<number> => {
  const sockets = new Set<Socket>()
  server.on('connection', socket => {
    sockets.add(socket)
    socket.on('error', () => {}).on('close', () => sockets.delete(socket))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return (server.address() as AddressInfo).port
}
