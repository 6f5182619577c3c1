import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { findServer } from '../../scripts/database-server.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { connect } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { masterKey, startServerProcess } from '../delivery/server-process.ts'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, sendGraphql } from '../support/server.ts'
import { unlessFullSize } from '../support/size.ts'

/** A disk of so many megabytes; undefined where this user cannot mount one. */
const smallDisk = (t: TestContext, megabytes: number): string | undefined => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-disk-'))
  const isMounted = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tidings', folder]).status === 0
  t.after(() => {
    if (isMounted) spawnSync('umount', ['--lazy', folder])
    rmSync(folder, { recursive: true, force: true })
  })
  return isMounted ? folder : undefined
}

const prepare = async (url: string) => {
  const database = await connect(url)
  await migrate(database)
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const admin = await database.transaction(trx =>
    createAccessToken(trx, sealer, { name: 'ci', permissions: ['admin'] }, Date.now()),
  )
  const project = await addProject(database)
  await database.close()
  return { ...admin, projectId: project.projectId, userId: project.userId }
}

const times = (count: number): number[] => Array.from({ length: count }, (_, n) => n)

const fill = (folder: string): string => {
  const { bavail, bsize } = statfsSync(folder)
  const file = path.join(folder, 'filler')
  try {
    writeFileSync(file, Buffer.alloc(Number(bavail) * Number(bsize)))
  } catch (error) {
    // The database has written something meanwhile.
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
  }
  return file
}

const FULL = 'the database cannot be written: its disk is full'
const ORGANISATION = 'mutation($name: String!) { upsertOrganisation(name: $name) { id } }'

const program = findServer()

describe('a server whose database server has a full disk', {
  skip: program ? unlessFullSize : 'needs a database server',
}, () => {
  it('is not ready, refuses with UNAVAILABLE, and says so in metrics and log, though small writes succeed', async t => {
    const folder = smallDisk(t, /mysqld/.test(program!) ? 400 : 160)
    if (!folder) return t.skip('mounting a small disk needs root')
    const { TMPDIR } = process.env
    process.env.TMPDIR = folder
    const settings = ['--innodb-file-per-table=1', '--loose-innodb-log-file-size=8M']
    const databaseServer = await startThrowAwayDatabase(program, { settings })
    t.after(databaseServer.stop)
    process.env.TMPDIR = TMPDIR
    const root = await connect(databaseServer.url, { poolSize: 1 })
    await root.knex.raw('CREATE DATABASE tidings CHARACTER SET utf8mb4')
    await root.close()
    const url = `${databaseServer.url}/tidings`
    const admin = await prepare(url)
    const server = await startServerProcess(url)
    t.after(() => server.end('SIGKILL'))
    const filler = fill(folder)
    const name = 'x'.repeat(200)
    const ask = () => Promise.all(times(24).map(n => sendGraphql(server.url, admin, ORGANISATION, { name: n + name })))
    let refused: string[] = []
    await eventually(
      'the disk to refuse something',
      async () => {
        refused = (await ask()).flatMap(({ errors }) => errors?.map(error => error.extensions.code) ?? [])
        return refused.length
      },
      count => count > 0,
      { timeoutMs: 60_000 },
    )
    assert.deepEqual([...new Set(refused)], ['UNAVAILABLE'])
    const ready = async () => (await fetch(`${server.url}/readyz`)).json()
    assert.deepEqual(await ready(), { status: 'not ready', reason: FULL })
    assert.match(await (await fetch(`${server.url}/metrics`)).text(), /^tidings_database_up 0$/m)
    assert.ok(server.log().includes(FULL), server.log())
    assert.doesNotMatch(server.log(), /"level":50.*"request"|can be worked on again|"stack"/)

    rmSync(filler)
    assert.deepEqual(
      (await ask()).flatMap(({ errors }) => errors ?? []),
      [],
    )
  })
})

describe('a server whose disk is full (sqlite)', () => {
  it('is not ready, refuses with UNAVAILABLE and does nothing, until there is room', async t => {
    const folder = smallDisk(t, 8)
    if (!folder) return t.skip('mounting a small disk needs root')
    const url = `sqlite:${path.join(folder, 'tidings.sqlite')}`
    const { projectId, userId, ...admin } = await prepare(url)
    const server = await startServerProcess(url, { TIDINGS_LOG_LEVEL: 'info' })
    t.after(() => server.end('SIGKILL'))
    const receiver = await startReceiver()
    t.after(receiver.close)
    const ask = (document: string, variables = {}) => sendGraphql(server.url, admin, document, variables)
    const ready = async () =>
      (await (await fetch(`${server.url}/readyz`)).json()) as { status: string; reason?: string }
    await ask('mutation($url: String!) { createWebhook(url: $url) { id } }', { url: receiver.url })
    const submit = (quarter: string) =>
      ask(
        `mutation($p: UUID!, $q: String!, $u: UUID!) {
          submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`,
        { p: projectId, q: quarter, u: userId },
      )

    const filler = fill(folder)
    const names = Array.from({ length: 24 }, (_, n) => `${n} ${'x'.repeat(200)}`)
    const answered = Promise.all(names.map(name => ask(ORGANISATION, { name })))
    await eventually('it not to be ready', ready, ({ reason }) => reason === FULL)
    const [answers, submitted] = await Promise.all([answered, submit('2026-1')])
    const refused = names.filter((_, n) => answers[n]!.errors)
    assert.ok(refused.length > 12, `${refused.length} of ${names.length} were refused`)
    for (const { errors } of answers) if (errors) assert.equal(errors[0]!.extensions.code, 'UNAVAILABLE')
    assert.equal(submitted.errors![0]!.extensions.code, 'UNAVAILABLE')
    const metrics = async () => (await fetch(`${server.url}/metrics`)).text()
    await eventually('the metrics to say so', metrics, text => /^tidings_database_up 0$/m.test(text))
    assert.match(await metrics(), /^tidings_database_free_bytes \d{1,6}$/m)
    await eventually('the log to say why', server.log, log => log.includes(FULL))
    assert.doesNotMatch(server.log(), /"level":50.*"request"|can be worked on again|"stack"/)

    rmSync(filler)
    await eventually('it to be ready', ready, ({ status }) => status === 'ready')
    const listed = await ask('{ organisations { name } }')
    const made = new Set(listed.data.organisations.map(({ name }: { name: string }) => name))
    for (const [n, name] of names.entries()) assert.equal(made.has(name), !answers[n]!.errors, name)
    assert.equal((await submit('2026-1')).errors, undefined)
    await receiver.waitFor(all => all.some(({ body }) => body.eventType === 'project_report_quarterly_submitted'))
  })
})
