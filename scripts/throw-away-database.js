import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, openSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { createConnection } from 'mysql2/promise'
import { aftercare } from './aftercare.js'
import { ADVICE, findServer, installServer } from './database-server.js'

const READY_WITHIN_MS = 60_000

/**
 * A private database server, which can be ended, frozen and started again.
 *
 * @typedef {object} ThrowAwayDatabase
 * @property {string} url
 * @property {(name: 'SIGKILL' | 'SIGTERM' | 'SIGSTOP' | 'SIGCONT') => Promise<void>} signal Sends a signal; if the
 *   signal ends the server, resolves when it has ended.
 * @property {() => Promise<void>} start Starts it again, on the same port and data.
 * @property {() => Promise<void>} stop Ends it, and removes its data.
 */

/**
 * Starts a private MariaDB or MySQL server on a free port of 127.0.0.1, with its data in a folder of its own. The
 * server and its data never outlive this process, even if that is killed. Throws an Error that says what to do.
 *
 * @param {string} [given] the path of the server; by default one that is found on this machine, or installed
 * @param {object} [how]
 * @param {AbortSignal} [how.stopping] ends the wait for an installation
 * @param {boolean} [how.isDurable] whether each commit is on disk, in the binary log too, before it is acknowledged
 * @param {string[]} [how.settings] additional settings of the server
 * @returns {Promise<ThrowAwayDatabase>}
 */
export const startThrowAwayDatabase = async (given, { stopping, isDurable = false, settings: also = [] } = {}) => {
  const program = given ?? findServer() ?? (await installServer(stopping))
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-database-'))
  const care = aftercare(folder)
  try {
    const log = path.join(folder, 'log')
    const data = path.join(folder, 'data')
    initialise(program, data, log)
    const port = await freePort()
    const url = `mysql://root@127.0.0.1:${port}`
    /** @type {import('node:child_process').ChildProcess} */
    let server
    const start = async () => {
      server = spawn(
        program,
        [...settings(data, path.join(folder, 'socket'), port), ...(isDurable ? DURABLE : RELAXED), ...also],
        {
          detached: true,
          stdio: ['ignore', openSync(log, 'a'), openSync(log, 'a')],
        },
      )
      const { pid } = server
      if (pid) {
        care.include(pid)
        server.once('exit', () => care.exclude(pid))
      }
      await untilReady(url, server, log)
    }
    /** @type {ThrowAwayDatabase['signal']} */
    const signal = async name => {
      const ended = /^SIG(STOP|CONT)$/.test(name) ? undefined : once(server, 'exit')
      server.kill(name)
      await ended
    }
    await start()
    const stop = async () => {
      const isRunning = server.exitCode === null && server.signalCode === null
      const ended = isRunning ? once(server, 'exit') : undefined
      await care.end()
      await ended
    }
    return { url, signal, start, stop }
  } catch (error) {
    await care.end()
    throw error
  }
}

const isRoot = process.getuid?.() === 0
const asUser = isRoot ? ['--user=root'] : []

/**
 * @param {string} program
 * @param {string} data
 * @param {string} log
 */
const initialise = (program, data, log) => {
  const common = [...ofItsOwn(data), ...asUser]
  const output = openSync(log, 'a')
  const run = (/** @type {string[]} */ args, input = '') =>
    execFileSync(program, args, { input, stdio: ['pipe', output, output] })
  try {
    if (!isMariadb(program)) {
      const accounts = `${data}.sql`
      writeFileSync(accounts, ROOT_BY_ADDRESS)
      return run([...common, '--initialize-insecure', `--init-file=${accounts}`])
    }
    // Does the work of mariadb-install-db, which needs client programs that mariadb-server-core lacks.
    execFileSync('mkdir', [data])
    return run([...common, '--bootstrap'], systemTables(program))
  } catch (error) {
    throw new Error(`${program} could not make an empty database: ${messageOf(error)}\n${lastLines(log)}\n${ADVICE}`)
  }
}

/** MySQL's root exists for the socket only; MariaDB has one for 127.0.0.1 too. */
const ROOT_BY_ADDRESS = `CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
`

/** @param {string} program */
const isMariadb = program => /mariadb/i.test(execFileSync(program, ['--version'], { encoding: 'utf8' }))

/** @param {string} program */
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

/**
 * A server that starts removes the temporary tables that it finds, those of another that starts in the same folder too.
 *
 * @param {string} data
 */
const ofItsOwn = data => ['--no-defaults', `--datadir=${data}`, `--tmpdir=${path.dirname(data)}`]

/**
 * @param {string} data
 * @param {string} socket
 * @param {number} port
 */
const settings = (data, socket, port) => [
  ...ofItsOwn(data),
  `--socket=${socket}`,
  `--pid-file=${data}.pid`,
  `--port=${port}`,
  '--bind-address=127.0.0.1',
  ...asUser,
  '--skip-name-resolve',
  '--max-connections=500',
  '--loose-mysqlx=OFF',
]

/**
 * Commits are written but not forced to disk: tests kill processes, the server's too, but never its machine. With a
 * small log, all that write at once would wait for seconds until there is room in it.
 */
const RELAXED = [
  '--loose-innodb-log-file-size=256M',
  '--loose-innodb-redo-log-capacity=256M',
  '--skip-log-bin',
  '--innodb-flush-log-at-trx-commit=2',
  '--innodb-flush-method=nosync',
  '--innodb-file-per-table=0',
  '--loose-sync-frm=0',
]
const DURABLE = ['--log-bin=binlog', '--server-id=1', '--sync-binlog=1', '--innodb-flush-log-at-trx-commit=1']

const freePort = async () => {
  const probe = net.createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = /** @type {net.AddressInfo} */ (probe.address())
  probe.close()
  await once(probe, 'close')
  return port
}

/**
 * @param {string} url
 * @param {import('node:child_process').ChildProcess} server
 * @param {string} log
 */
const untilReady = async (url, server, log) => {
  const giveUpAt = Date.now() + READY_WITHIN_MS
  for (;;) {
    try {
      const connection = await createConnection(url)
      await connection.end()
      return
    } catch (error) {
      const isOver = server.exitCode !== null || server.signalCode !== null || Date.now() > giveUpAt
      if (isOver)
        throw new Error(`The database server did not start: ${messageOf(error)}\n${lastLines(log)}\n${ADVICE}`)
      await wait(50)
    }
  }
}

/** @param {unknown} error */
const messageOf = error => (error instanceof Error ? error.message : String(error))

/** @param {string} log */
const lastLines = log => (existsSync(log) ? readFileSync(log, 'utf8').trim().split('\n').slice(-8).join('\n') : '')
