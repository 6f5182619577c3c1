import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  accessSync,
  constants,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { createConnection } from 'mysql2/promise'
import { aftercare } from './aftercare.js'

const READY_WITHIN_MS = 60_000
const APT_PACKAGE = 'mariadb-server-core'
const ELSEWHERE = ['/usr/sbin', '/usr/local/sbin', '/usr/local/mysql/bin', '/opt/homebrew/bin', '/usr/libexec']

const ADVICE = `Tests run on SQLite and on a server of the MySQL family. Any one of these serves:
  - install a server for the tests to start on their own: apt-get install ${APT_PACKAGE} (Debian, Ubuntu), brew install mariadb (macOS)
  - name running ones, where they may create databases: TIDINGS_TEST_DATABASE_URLS=mysql://root@127.0.0.1:3306 npm test
  - go without, on SQLite alone: TIDINGS_TEST_ENGINES=sqlite npm test`

/**
 * Starts a private MariaDB or MySQL server on a free port of 127.0.0.1, with its data in a folder of its own.
 * Nothing of it outlives this process, even when that is killed. Throws an Error that says what to do.
 *
 * `signal` sends the server a signal, and resolves when it has ended if that is what the signal does; `start` starts it again on the
 * same port and data. With `isDurable` each commit is on disk, in the binary log too, before it is acknowledged.
 */
export const startThrowAwayDatabase = async (program = findServer() ?? installServer(), { isDurable = false } = {}) => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-database-'))
  const care = aftercare(folder)
  try {
    const log = path.join(folder, 'log')
    const data = path.join(folder, 'data')
    initialise(program, data, log)
    const port = await freePort()
    const url = `mysql://root@127.0.0.1:${port}`
    let server
    const start = async () => {
      server = spawn(
        program,
        [...settings(data, path.join(folder, 'socket'), port), ...(isDurable ? DURABLE : RELAXED)],
        {
          detached: true,
          stdio: ['ignore', openSync(log, 'a'), openSync(log, 'a')],
        },
      )
      const { pid } = server
      care.include(pid)
      server.once('exit', () => care.exclude(pid))
      await untilReady(url, server, log)
    }
    const signal = async name => {
      const ended = /^SIG(STOP|CONT)$/.test(name) ? undefined : once(server, 'exit')
      server.kill(name)
      await ended
    }
    await start()
    return { url, signal, start, stop: care.end }
  } catch (error) {
    await care.end()
    throw error
  }
}

/** The path of a `mariadbd` or `mysqld` on this machine, if there is one. */
export const findServer = () => {
  const folders = [...(process.env.PATH ?? '').split(path.delimiter), ...ELSEWHERE]
  const candidates = ['mariadbd', 'mysqld'].flatMap(name => folders.map(folder => path.join(folder, name)))
  return candidates.find(file => {
    try {
      accessSync(file, constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}

const installServer = () => {
  if (process.getuid?.() !== 0 || spawnSync('apt-get', ['--version']).status !== 0) {
    throw new Error(`No mariadbd or mysqld was found on this machine. ${ADVICE}`)
  }
  console.error(`tidings: No database server was found; installing ${APT_PACKAGE} …`)
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  const update = spawnSync('apt-get', ['update', '-qq'], { env, encoding: 'utf8' })
  const install = spawnSync('apt-get', ['install', '-y', '-qq', '--no-install-recommends', APT_PACKAGE], {
    env,
    encoding: 'utf8',
  })
  const program = findServer()
  if (program) return program
  const complaint = (install.stderr || update.stderr).trim().split('\n').slice(-10).join('\n  ')
  throw new Error(`apt-get could not install ${APT_PACKAGE}:\n  ${complaint}\n${ADVICE}`)
}

const isRoot = process.getuid?.() === 0
const asUser = isRoot ? ['--user=root'] : []

const initialise = (program, data, log) => {
  const common = ['--no-defaults', `--datadir=${data}`, ...asUser]
  const output = openSync(log, 'a')
  const run = (args, input) => execFileSync(program, args, { input, stdio: ['pipe', output, output] })
  try {
    if (!isMariadb(program)) {
      const accounts = `${data}.sql`
      writeFileSync(accounts, ROOT_BY_ADDRESS)
      return run([...common, '--initialize-insecure', `--init-file=${accounts}`])
    }
    // What mariadb-install-db does, without the client programs that it needs and mariadb-server-core lacks.
    execFileSync('mkdir', [data])
    return run([...common, '--bootstrap'], systemTables(program))
  } catch (error) {
    throw new Error(`${program} could not make an empty database: ${error.message}\n${lastLines(log)}\n${ADVICE}`)
  }
}

/** MySQL's own root is that of the socket; MariaDB's tables have one of 127.0.0.1 too. */
const ROOT_BY_ADDRESS = `CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
`

const isMariadb = program => /mariadb/i.test(execFileSync(program, ['--version'], { encoding: 'utf8' }))

const systemTables = program => {
  const help = execFileSync(program, ['--no-defaults', '--verbose', '--help'], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
    maxBuffer: 2 ** 24,
  })
  const share = path.join(help.match(/^character-sets-dir\s+(\S.*)$/m)?.[1] ?? '/usr/share/mysql/charsets', '..')
  const prefix = readdirSync(share).includes('mariadb_system_tables.sql') ? 'mariadb' : 'mysql'
  const files = ['system_tables', 'performance_tables', 'system_tables_data'].map(name => `${prefix}_${name}.sql`)
  const statements = files.map(file => readFileSync(path.join(share, file), 'utf8'))
  return ['CREATE DATABASE mysql;', 'USE mysql;', 'SET @auth_root_socket = NULL;', ...statements].join('\n')
}

const settings = (data, socket, port) => [
  '--no-defaults',
  `--datadir=${data}`,
  `--socket=${socket}`,
  `--pid-file=${data}.pid`,
  `--port=${port}`,
  '--bind-address=127.0.0.1',
  ...asUser,
  '--skip-name-resolve',
  '--max-connections=500',
  '--loose-mysqlx=OFF',
]

/** Commits are written but not forced to disk: tests end processes of Tidings without warning, never the database's machine. */
const RELAXED = ['--skip-log-bin', '--innodb-flush-log-at-trx-commit=2']
const DURABLE = ['--log-bin=binlog', '--server-id=1', '--sync-binlog=1', '--innodb-flush-log-at-trx-commit=1']

const freePort = async () => {
  const probe = net.createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address()
  probe.close()
  await once(probe, 'close')
  return port
}

const untilReady = async (url, server, log) => {
  const giveUpAt = Date.now() + READY_WITHIN_MS
  for (;;) {
    try {
      const connection = await createConnection(url)
      await connection.end()
      return
    } catch (error) {
      const isOver = server.exitCode !== null || server.signalCode !== null || Date.now() > giveUpAt
      if (isOver) throw new Error(`The database server did not start: ${error.message}\n${lastLines(log)}\n${ADVICE}`)
      await wait(50)
    }
  }
}

const lastLines = log => (existsSync(log) ? readFileSync(log, 'utf8').trim().split('\n').slice(-8).join('\n') : '')
