import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

// A server that does nothing, as a process: an attack on it costs others what the machine and the attacker cost them.

const server = createServer((request, response) => {
  request.resume().once('end', () => response.end('{"data":{}}'))
}).listen(0, '127.0.0.1', () => process.send!(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))

process.once('disconnect', () => process.exit())
