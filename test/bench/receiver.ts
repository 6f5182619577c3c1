import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

// A receiver in a process of its own, for benchmarks: one port an endpoint, answers at once; a path that ends in /hanging never.
// Tells its parent, when asked, which project reports it has been told of, and when.

let arrivals: [string, number][] = []
const ports = await Promise.all(
  Array.from(
    { length: Number(process.argv[2]) },
    () =>
      new Promise<number>(resolve => {
        const server = createServer((request, response) => {
          let body = ''
          request.setEncoding('utf8')
          request.on('data', chunk => {
            body += chunk
          })
          request.on('end', () => {
            if (request.url!.endsWith('/hanging')) return
            arrivals.push([/"projectReport":\{"id":"([^"]+)"/.exec(body)![1]!, Date.now()])
            response.end()
          })
        })
        server.keepAliveTimeout = 60_000
        server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port))
      }),
  ),
)

process.on('message', () => {
  process.send!({ arrivals })
  arrivals = []
})
process.on('disconnect', () => process.exit())
process.send!({ ports })
