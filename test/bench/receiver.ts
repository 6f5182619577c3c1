import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

// A receiver in a process of its own, for benchmarks: one port an endpoint, answers at once; a path that ends in
// /hanging never, one that ends in /flooding without end, one that ends in /trickling a byte at a time. On request, it
// tells its parent which project reports it has received, and when, except on a path that ends in /aside.

const CHUNK = Buffer.alloc(65_536, 'x')
const flood = (response: ServerResponse): void => {
  while (!response.destroyed && response.write(CHUNK));
  if (!response.destroyed) response.once('drain', () => flood(response))
}

const trickle = (response: ServerResponse): void => {
  response.write('.')
  const timer = setInterval(() => response.write('.'), 200)
  response.once('close', () => clearInterval(timer))
}

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
            if (request.url!.endsWith('/flooding')) return flood(response)
            if (request.url!.endsWith('/trickling')) return trickle(response)
            const [, reportId] = /"projectReport":\{"id":"([^"]+)"/.exec(body) ?? []
            const isAside = request.url!.endsWith('/aside')
            if (reportId && !isAside) arrivals.push([reportId, performance.timeOrigin + performance.now()])
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
