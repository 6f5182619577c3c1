import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { engines, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const start = (databaseUrl: string, key: string, processes: string) =>
  tidings(['server', 'start', '--processes', processes], {
    home: temporaryFolder(),
    env: { TIDINGS_DATABASE_URL: databaseUrl, TIDINGS_MASTER_KEY: key, TIDINGS_PORT: '0' },
  })

const childrenOf = async (pid: number): Promise<number[]> => {
  const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid='])
  const pairs = stdout
    .trim()
    .split('\n')
    .map(line => line.trim().split(/\s+/).map(Number) as [number, number])
  return pairs.filter(([child, parent]) => parent === pid && child !== pid).map(([child]) => child)
}

const isRunning = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

test('SQLite is refused for more than one process, and told why', async () => {
  const { code, stderr } = await start('sqlite:/nonexistent/tidings.sqlite', masterKey, '2')
  assert.equal(code, 2)
  assert.match(stderr, /SQLite is for one process, and --processes asks for 2/)
})

test('a number of processes that makes no sense is wrong usage', async () => {
  for (const count of ['0', 'many', '-1', '1000']) {
    assert.equal((await start('mysql://root@127.0.0.1:1/t', masterKey, count)).code, 2, count)
  }
})

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`several processes of one server (${engine})`, () => {
    let given: TestDatabase
    let server: ServerProcess
    let ended = false
    const processes = () => childrenOf(server.pid)
    const ready = () => server.log().match(/"msg":"ready"/g)?.length ?? 0
    before(async () => {
      given = await migratedDatabase(engine)
      server = await startServerProcess(given.url, { TIDINGS_LOG_LEVEL: 'info' }, ['--processes', '2'])
      await eventually('both to be ready', ready, count => count === 2)
    })
    after(async () => {
      if (!ended) await server?.end('SIGKILL')
      await given?.drop()
    })

    test('share one port, and both answer', async () => {
      assert.equal((await processes()).length, 2)
      const answering = async () => {
        await fetch(`${server.url}/.well-known/jwks.json`, { headers: { connection: 'close' } })
        return new Set(server.log().match(/"process":\d+,"requestId"/g)).size
      }
      await eventually('both to have answered', answering, count => count === 2)
    })

    test('have one set of metrics between them', async () => {
      const metrics = async () => (await fetch(`${server.url}/metrics`, { headers: { connection: 'close' } })).text()
      const figure = (name: string, text: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1])
      const memory = figure('process_resident_memory_bytes', await metrics())
      const { stdout } = await promisify(execFile)('ps', ['-o', 'rss=', '-p', (await processes()).join(',')])
      const sum = stdout
        .trim()
        .split('\n')
        .reduce((total, kib) => total + Number(kib) * 1024, 0)
      assert.ok(Math.abs(memory / sum - 1) < 0.3, `${memory} bytes of ${sum}`)
      const text = await metrics()
      assert.ok(Math.abs(figure('tidings_clock_offset_seconds', text)) < 60)
      // What the database knows is not added up.
      assert.equal(figure('tidings_database_up', text), 1)
      assert.equal(figure('tidings_queue_depth', text), 0)
    })

    test('are started again when they die, and the others answer meanwhile', async () => {
      const [killed] = await processes()
      process.kill(killed!, 'SIGKILL')
      const answers = () =>
        fetch(`${server.url}/readyz`, { headers: { connection: 'close' } }).then(
          ({ ok }) => ok,
          // What had been given to the one that died is broken off with it.
          () => false,
        )
      await eventually('the other to answer', answers, isAnswered => isAnswered)
      await eventually('a third to be ready', ready, count => count === 3)
      const now = await processes()
      assert.equal(now.length, 2)
      assert.ok(!now.includes(killed!))
    })

    test('all end when the parent is told to', async () => {
      const running = await processes()
      assert.deepEqual(await server.end('SIGTERM'), { code: 0, signal: null })
      ended = true
      assert.deepEqual(running.filter(isRunning), [])
    })

    test('are not started again and again where the first cannot start', async () => {
      const { code, stderr } = await start(given.url, randomBytes(32).toString('base64'), '2')
      assert.equal(code, 1)
      assert.match(stderr, /sealed with master key/)
      assert.equal(stderr.match(/The server cannot start/g)?.length, 1, stderr)
    })
  })
}
