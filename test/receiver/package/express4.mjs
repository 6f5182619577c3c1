// Express 4 waits for no promise: what rejects there ends the process.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { expressReceiver } from '@tidings/receiver'
import { startTestServer } from '@tidings/receiver/testing'
import express from 'express'

const sender = await startTestServer()
const app = express()
const server = app.listen(0, '127.0.0.1')
await once(server, 'listening')
const url = `http://127.0.0.1:${server.address().port}`
let late = 0

const mount = (path, handler, options = {}) =>
  app.post(path, expressReceiver({ issuer: sender.issuer, audience: url + path, ...options }, handler))
mount('/fine', () => {})
mount(
  '/throws',
  () => {
    throw new Error('no')
  },
  { onError: () => Promise.reject(new Error('the reporter is away')), onRefused: () => JSON.parse('{') },
)
// Something else answers before the receiver does.
app.use('/late', (_request, response, next) => {
  setTimeout(() => response.status(503).end(), 50)
  next()
})
const done = Promise.withResolvers?.() ?? deferred()
mount('/late', () => new Promise(resolve => setTimeout(resolve, 150)), {
  onError: () => {
    late += 1
    done.resolve()
  },
})
function deferred() {
  const made = {}
  made.promise = new Promise(resolve => {
    made.resolve = resolve
  })
  return made
}

const eventId = '0198a111-1111-7000-8000-000000000001'
const statuses = []
for (const [path, delivery] of [['/fine', { eventId }], ['/fine', { eventId }], ['/throws'], ['/late']]) {
  statuses.push((await sender.deliver(url + path, delivery)).status)
}
await done.promise
statuses.push((await sender.deliver(`${url}/fine`)).status === 200 && 'alive')
const { version } = JSON.parse(readFileSync(createRequire(import.meta.url).resolve('express/package.json'), 'utf8'))
console.log(JSON.stringify({ version: version[0], statuses, late }))
process.exit()
