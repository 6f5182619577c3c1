import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { connect } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { masterKey, startServerProcess } from '../delivery/server-process.ts'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, sendGraphql } from '../support/server.ts'

/** A disk of a few megabytes; undefined where this user cannot mount one. */
const smallDisk = (t: TestContext): string | undefined => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-disk-'))
  const isMounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tidings', folder]).status === 0
  t.after(() => {
    if (isMounted) spawnSync('umount', ['--lazy', folder])
    rmSync(folder, { recursive: true, force: true })
  })
  return isMounted ? folder : undefined
}

const fill = (folder: string): string => {
  const { bavail, bsize } = statfsSync(folder)
  const file = path.join(folder, 'filler')
  writeFileSync(file, Buffer.alloc(Number(bavail) * Number(bsize)))
  return file
}

const ORGANISATION = 'mutation($name: String!) { upsertOrganisation(name: $name) { id } }'

describe('a server whose disk is full (sqlite)', () => {
  it('is not ready, refuses with UNAVAILABLE and does nothing, until there is room', async t => {
    const folder = smallDisk(t)
    if (!folder) return t.skip('mounting a small disk needs root')
    const url = `sqlite:${path.join(folder, 'tidings.sqlite')}`
    const database = await connect(url)
    await migrate(database)
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    const admin = await database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'ci', permissions: ['admin'] }, Date.now()),
    )
    const { projectId, userId } = await addProject(database)
    await database.close()
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
    await eventually('it not to be ready', ready, ({ reason }) => reason === 'the database cannot be written')
    const [answers, submitted] = await Promise.all([answered, submit('2026-1')])
    const refused = names.filter((_, n) => answers[n]!.errors)
    assert.ok(refused.length > 12, `${refused.length} of ${names.length} were refused`)
    for (const { errors } of answers) if (errors) assert.equal(errors[0]!.extensions.code, 'UNAVAILABLE')
    assert.equal(submitted.errors![0]!.extensions.code, 'UNAVAILABLE')
    assert.doesNotMatch(server.log(), /"level":50.*"request"|can be worked on again/)

    rmSync(filler)
    await eventually('it to be ready', ready, ({ status }) => status === 'ready')
    const listed = await ask('{ organisations { name } }')
    const made = new Set(listed.data.organisations.map(({ name }: { name: string }) => name))
    for (const [n, name] of names.entries()) assert.equal(made.has(name), !answers[n]!.errors, name)
    assert.equal((await submit('2026-1')).errors, undefined)
    await receiver.waitFor(all => all.some(({ body }) => body.eventType === 'project_report_quarterly_submitted'))
  })
})
