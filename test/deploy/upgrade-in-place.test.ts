import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { masterKey } from '../delivery/server-process.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { sendGraphql } from '../support/server.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const PARTS = ['bin', 'cli', 'server', 'shared', 'migrations', 'receiver', 'examples', 'docs', 'pages', 'package.json']
const VERSION = '9.9.9'

/** A folder with a release, in which another can be installed. */
const releaseFolder = (t: TestContext): string => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-release-'))
  t.after(() => rmSync(folder, { recursive: true, force: true }))
  for (const part of PARTS) cpSync(path.join(root, part), path.join(folder, part), { recursive: true })
  symlinkSync(path.join(root, 'node_modules'), path.join(folder, 'node_modules'))
  const start = "import { run } from './cli/main.ts'\nprocess.exitCode = await run(process.argv.slice(2))\n"
  writeFileSync(path.join(folder, 'tidings.js'), start)
  return folder
}

/** A later version, with one more migration. */
const installNext = (folder: string): void => {
  const edit = (file: string, change: (text: string) => string) =>
    writeFileSync(path.join(folder, file), change(readFileSync(path.join(folder, file), 'utf8')))
  edit('package.json', text => text.replace(/"version": "[^"]*"/, `"version": "${VERSION}"`))
  edit(
    'migrations/index.ts',
    text => `${text}\nmigrations['9999_next'] = { up: async () => {}, down: async () => {} }\n`,
  )
}

const children = (pid: number): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .filter(name => {
      try {
        return readFileSync(`/proc/${name}/stat`, 'utf8').split(') ')[1]!.split(' ')[1] === String(pid)
      } catch {
        return false
      }
    })
    .map(Number)

describe('a server in whose folder another release was installed', { skip: process.platform !== 'linux' }, () => {
  it('is not ready without a process that answers queries, and goes on as that release when it can run', async t => {
    const folder = releaseFolder(t)
    const port = await freePort()
    const env = {
      PATH: process.env.PATH,
      HOME: folder,
      NODE_OPTIONS: '--disable-warning=ExperimentalWarning',
      TIDINGS_DATABASE_URL: `sqlite:${path.join(folder, 'tidings.sqlite')}`,
      TIDINGS_MASTER_KEY: masterKey,
      TIDINGS_PORT: String(port),
      TIDINGS_HOME: '/nonexistent',
    }
    const tidings = (...args: string[]) => {
      const { status, stdout, stderr } = spawnSync(process.execPath, ['tidings.js', ...args], {
        cwd: folder,
        env,
        encoding: 'utf8',
      })
      assert.equal(status, 0, stderr)
      return stdout
    }
    tidings('server', 'migrate')
    const { id, apiKey, secret } = JSON.parse(
      tidings('server', 'token', '--name', 'ci', '--permissions', 'admin', '--output', 'json'),
    )
    const admin = { id, apiKey, apiSecret: secret }
    const server: ChildProcess = spawn(process.execPath, [path.join(folder, 'tidings.js'), 'server', 'start'], {
      env,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let log = ''
    server.stderr!.on('data', text => {
      log += text
    })
    t.after(() => server.kill('SIGKILL'))
    const url = `http://127.0.0.1:${port}`
    const ready = async (): Promise<string> => {
      try {
        const { status, reason } = (await (await fetch(`${url}/readyz`)).json()) as { status: string; reason?: string }
        return reason ?? status
      } catch (error) {
        return `${(error as Error).message} ${log}`
      }
    }
    const isReady = (told: string) => told === 'ready'
    await eventually('it to be ready', ready, isReady, { timeoutMs: 60_000 })
    const list = () => sendGraphql(url, admin, '{ organisations { name } }')
    await eventually('a query to be answered', list, ({ errors }) => !errors, { timeoutMs: 60_000 })

    installNext(folder)
    assert.ok(isReady(await ready()))
    for (const pid of children(server.pid!)) process.kill(pid, 'SIGKILL')
    await eventually('the query to be refused', list, ({ errors }) => errors?.[0]?.extensions.code === 'UNAVAILABLE')
    assert.match(await ready(), new RegExp(`another release was installed .*${VERSION}`))
    const made = await sendGraphql(url, admin, 'mutation { upsertOrganisation(name: "A") { id } }')
    assert.equal(made.errors, undefined)
    await eventually(
      'the log to say why',
      () => log,
      said => /cannot start yet/.test(said),
      { timeoutMs: 60_000 },
    )
    assert.match(log, /9999_next/)

    tidings('server', 'migrate')
    await eventually('it to be ready again', ready, isReady, { timeoutMs: 60_000 })
    assert.equal(server.exitCode, null)
    const answered = await eventually('a query to be answered', list, ({ errors }) => !errors, { timeoutMs: 60_000 })
    assert.deepEqual(answered.data.organisations, [{ name: 'A' }])
    assert.match(tidings('server', 'doctor', '--output', 'json'), new RegExp(`${server.pid}: ${VERSION}`))
  })
})
