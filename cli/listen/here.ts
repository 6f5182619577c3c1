import type { Server } from 'node:http'
import { CliError, exitCodes } from '../errors.ts'

/** Listens on the loopback address only. Throws a CliError if the port is taken. */
export const listenHere = (server: Server, port: number): Promise<void> =>
  new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EADDRINUSE' && error.code !== 'EACCES') return reject(error)
      const why = error.code === 'EADDRINUSE' ? 'is in use by another program' : 'may not be used by this user'
      reject(
        new CliError(
          exitCodes.failed,
          'PORT_UNAVAILABLE',
          `Port ${port} ${why}.`,
          'Choose another with --port; --port 0 takes any free one.',
        ),
      )
    })
    server.listen(port, '127.0.0.1', resolve)
  })
