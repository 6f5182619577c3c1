import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { describe, it, type TestContext } from 'node:test'
import { Worker } from 'node:worker_threads'
import { createDoor } from '../../server/http/listen.ts'
import { createLog } from '../../server/log.ts'
import { freePort } from '../support/ports.ts'
import { atFullSize } from '../support/size.ts'

const CONNECTIONS = atFullSize(300, 100)
const host = '127.0.0.1'
const log = createLog('silent')

/** In a thread: asks at a port once, and resolves to `answered`, to the code of what went wrong, or to `closed`. */
const ASK = `
  const { connect } = require('node:net')
  const { parentPort } = require('node:worker_threads')
  const ask = port => new Promise(resolve => {
    const socket = connect(port, '${host}')
    socket.write('GET / HTTP/1.1\\r\\nHost: here\\r\\nConnection: close\\r\\n\\r\\n')
    socket.setEncoding('utf8').once('data', () => resolve('answered')).once('error', ({ code }) => resolve(code))
    socket.once('close', () => resolve('closed'))
  })
`

/** Asks at each port it is given again and again, as a proxy does, until it is answered; then posts what it saw. */
const IMPATIENT = `
  ${ASK}
  parentPort.on('message', async port => {
    const seen = new Set([await ask(port)])
    parentPort.postMessage('asking')
    const client = async () => {
      let last
      do seen.add(last = await ask(port))
      while (last !== 'answered')
    }
    await Promise.all(Array.from({ length: 16 }, client))
    parentPort.postMessage([...seen].sort())
  })
`

/** Asks at a port each two milliseconds until it is refused, and says how often it was answered and how often not. */
const CURIOUS = `
  ${ASK}
  parentPort.on('message', async port => {
    const seen = {}
    const asked = []
    parentPort.postMessage('asking')
    for (let n = 0; !seen.ECONNREFUSED; n++) {
      asked.push(ask(port).then(what => { seen[what] = (seen[what] ?? 0) + 1 }))
      await new Promise(resolve => setTimeout(resolve, 2))
    }
    await Promise.all(asked)
    parentPort.postMessage(seen)
  })
`

const open = async (t: TestContext) => {
  const port = await freePort()
  let turns = 0
  let lastTurn = 0
  const door = createDoor(
    (_request, response) => {
      lastTurn = turns
      response.end('here')
    },
    { host, port },
    log,
  )
  await door.open()
  const sockets: Socket[] = []
  t.after(() => {
    for (const socket of sockets) socket.destroy()
    return door.close(0)
  })
  const answered = (): Promise<string> => {
    const socket = connect(port, host)
    sockets.push(socket)
    socket.write('GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n')
    return new Promise((resolve, reject) => {
      let answer = ''
      socket.setEncoding('utf8').on('data', chunk => (answer += chunk))
      socket.once('end', () => resolve(answer)).once('error', reject)
    })
  }
  const count = (): void => {
    turns += 1
    counting = setImmediate(count)
  }
  let counting = setImmediate(count)
  t.after(() => clearImmediate(counting))
  return { door, port, answered, turns: () => lastTurn }
}

const listenOn = async (port: number, options: object): Promise<Server> => {
  const server = createServer().listen({ port, host, ...options })
  await once(server, 'listening')
  return server
}

describe('a listening address', () => {
  it('accepts hundreds of new connections in a few turns of the event loop', {
    skip: process.platform !== 'linux',
  }, async t => {
    const { answered, turns } = await open(t)
    const answers = await Promise.all(Array.from({ length: CONNECTIONS }, answered))
    assert.ok(answers.every(answer => answer.endsWith('here')))
    assert.ok(turns() < CONNECTIONS / 3, `${turns()} turns`)
  })

  it('answers the requests on connections that have arrived when it closes', async t => {
    const close = async () => {
      const { door, answered } = await open(t)
      const answers = Promise.all(Array.from({ length: CONNECTIONS }, answered))
      // Now the kernel has the connections, and this process none of them.
      await new Promise(resolve => setImmediate(resolve))
      await door.close(0)
      return answers
    }
    // It accepts for half a second, in which a machine that has much else to do may not come to it.
    const answers = await close().catch(close).catch(close)
    assert.ok(answers.every(answer => answer.endsWith('here')))
  })

  it('closes after a short turn of the event loop, since it would reset what comes in a long one', {
    skip: process.platform !== 'linux',
  }, async t => {
    const clients = new Worker(CURIOUS, { eval: true })
    t.after(() => clients.terminate())
    let turn = 0
    let busy: NodeJS.Immediate
    const work = () => {
      // One turn in four is long.
      for (const until = performance.now() + (turn++ % 4 === 0 ? 20 : 0); performance.now() < until; );
      busy = setImmediate(work)
    }
    work()
    t.after(() => clearImmediate(busy))
    const rounds = atFullSize(40, 10)
    let resets = 0
    for (let round = 0; round < rounds; round++) {
      const port = await freePort()
      const door = createDoor((_request, response) => response.end('here'), { host, port }, log)
      await door.open()
      clients.postMessage(port)
      await once(clients, 'message')
      const ended = once(clients, 'message')
      await door.close(0)
      const [seen] = (await ended) as [Record<string, number>]
      assert.ok(seen.ECONNREFUSED, JSON.stringify(seen))
      // What comes after its connection was closed as idle is reset too, which its client may see as an end.
      resets += (seen.ECONNRESET ?? 0) + (seen.EPIPE ?? 0) + (seen.closed ?? 0)
    }
    // A long turn is that of some ten connections.
    assert.ok(resets < 4 * rounds, `${resets} resets in ${rounds} rounds`)
  })

  it('answers each connection that it accepts, from the first', async t => {
    const clients = new Worker(IMPATIENT, { eval: true })
    t.after(() => clients.terminate())
    for (let round = 0; round < 100; round++) {
      const port = await freePort()
      clients.postMessage(port)
      await once(clients, 'message')
      const seen = once(clients, 'message')
      const door = createDoor((_request, response) => response.end('here'), { host, port }, log)
      await door.open()
      assert.deepEqual((await seen)[0], ['ECONNREFUSED', 'answered'])
      await door.close(0)
    }
  })

  it('is refused while another program listens there, even one that would share it', async t => {
    for (const options of [{}, { reusePort: process.platform === 'linux' }]) {
      const port = await freePort()
      const other = await listenOn(port, options)
      t.after(() => other.close())
      await assert.rejects(createDoor(() => {}, { host, port }, log).open(), { code: 'EADDRINUSE' })
    }
  })

  it('of another machine is refused as such, not as in use', async () => {
    const door = createDoor(() => {}, { host: '192.0.2.1', port: 4100 }, log)
    await assert.rejects(door.open(), { code: 'EADDRNOTAVAIL' })
  })
})
