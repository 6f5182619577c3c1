import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { ReplayStore } from '../../receiver/index.ts'
import { type EvalScript, receiptsTable, redisReplayStore, sqlReplayStore } from '../../receiver/stores/index.ts'
import { replayStoreCases } from '../../receiver/testing/replay-store-cases.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, freshDatabase, type TestDatabase } from '../support/databases.ts'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'

describeEachEngine('the store in a table', engine => {
  const clock = testClock()
  let fresh: TestDatabase
  let store: ReplayStore
  before(async () => {
    fresh = await freshDatabase(engine)
    await fresh.database.knex.raw(receiptsTable())
    store = sqlReplayStore(fresh.database.knex, { now: clock.now })
  })
  after(() => fresh.drop())
  for (const { name, run } of replayStoreCases(() => store, { wait: clock.advance })) test(name, run)
})

const lacksRedis =
  spawnSync('redis-server', ['--version'], { stdio: 'ignore' }).error && 'there is no redis-server on this machine'

describe('the store in Redis', { skip: lacksRedis ?? false }, () => {
  let folder: string
  let store: ReplayStore
  let end: () => Promise<unknown>
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-redis-'))
    const port = await freePort()
    const server = spawn('redis-server', ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--dir', folder], {
      stdio: 'ignore',
    })
    const redis = await whenItListens(() => openRedis(port))
    store = redisReplayStore(redis.evalScript)
    end = () => {
      redis.close()
      server.kill('SIGKILL')
      return once(server, 'exit')
    }
  })
  after(async () => {
    await end()
    await rm(folder, { recursive: true })
  })
  for (const { name, run } of replayStoreCases(() => store)) test(name, run)
})

/** As much of a client as a script needs: a command and its answer in RESP, one after the other. */
const openRedis = async (port: number): Promise<{ evalScript: EvalScript; close(): void }> => {
  const socket = connect(port, '127.0.0.1')
  await once(socket, 'connect')
  socket.setEncoding('latin1')
  const waiting: ((answer: unknown) => void)[] = []
  let read = ''
  socket.on('data', text => {
    read += text
    for (;;) {
      const line = /^([$:+-])(.*?)\r\n/.exec(read)
      if (!line) return
      const [whole, kind, value] = line as unknown as [string, string, string]
      const length = kind === '$' && value !== '-1' ? Number(value) + 2 : 0
      if (read.length < whole.length + length) return
      const answer = kind === '$' ? read.slice(whole.length, whole.length + Math.max(0, length - 2)) : value
      read = read.slice(whole.length + length)
      waiting.shift()!(kind === '-' ? Promise.reject(new Error(answer)) : answer)
    }
  })
  return {
    evalScript: (script, key, args) => {
      const parts = ['EVAL', script, '1', key, ...args]
      socket.write(`*${parts.length}\r\n${parts.map(part => `$${Buffer.byteLength(part)}\r\n${part}\r\n`).join('')}`)
      return new Promise(resolve => waiting.push(resolve))
    },
    close: () => socket.destroy(),
  }
}
