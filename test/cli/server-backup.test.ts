import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { connect } from '../../server/database/connect.ts'
import { openCarried } from '../../server/domain/webhook-requests.ts'
import { otherWork } from '../../server/event-loop.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { addSigned } from './signed-webhook.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const path = join(home, 'tidings.sqlite')
const port = await freePort()
const env = {
  TIDINGS_DATABASE_URL: `sqlite:${path}`,
  TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
  TIDINGS_PORT: String(port),
}
const server = async (...args: string[]) => {
  const ended = await tidings(['server', ...args, '--output', 'json'], { home, env })
  return {
    ...ended,
    data: ended.stdout === '' ? undefined : JSON.parse(ended.stdout),
    error: ended.code === 0 ? undefined : JSON.parse(ended.stderr).error,
  }
}
const revokedIn = (file: string): string[] => {
  const database = new DatabaseSync(file)
  const found = database.prepare('SELECT id FROM access_tokens WHERE revoked_at IS NOT NULL').all()
  database.close()
  return found.map(({ id }) => String(id))
}
const revoke = (id: string): void => {
  const database = new DatabaseSync(path)
  database.prepare('UPDATE access_tokens SET revoked_at = ? WHERE id = ?').run(Date.now(), id)
  database.close()
}

await server('migrate')
await server('token', '--name', 'kept', '--permissions', 'admin')
const revoked = (await server('token', '--name', 'revoked', '--permissions', 'read')).data
const backup = join(home, 'backup.sqlite')

test('a new database can be read by its owner alone, its log too', async () => {
  assert.equal(statSync(path).mode & 0o777, 0o600)
})

test('a backup is made while a server writes, is whole, and is its owner’s alone', async () => {
  const database = await connect(`sqlite:${path}`)
  const write = async (n: number): Promise<void> => {
    await otherWork()
    await database
      .knex('users')
      .insert({ id: String(n).padStart(36, '0'), name: 'x'.repeat(200), created_at: n, updated_at: n })
  }
  await write(0)
  let isWriting = true
  const writing = (async () => {
    for (let n = 1; isWriting; n += 1) await write(n)
  })()
  const { code, data } = await server('backup', backup)
  isWriting = false
  await writing
  await database.close()
  assert.equal(code, 0)
  assert.equal(data.bytes, statSync(backup).size)
  assert.equal(statSync(backup).mode & 0o777, 0o600)
  const copy = new DatabaseSync(backup, { readOnly: true })
  assert.deepEqual({ ...copy.prepare('PRAGMA integrity_check').get() }, { integrity_check: 'ok' })
  const [count, last] = ['COUNT(*) - 1', 'MAX(created_at)'].map(
    what => copy.prepare(`SELECT ${what} AS n FROM users`).get()?.n,
  )
  assert.equal(count, last, 'of one moment')
  copy.close()
})

test('a backup overwrites nothing', async () => {
  const { code, error } = await server('backup', backup)
  assert.equal(code, 1)
  assert.match(error.message, /already exists/)
})

test('a restore is refused while a server runs, and when the file is none of ours', async () => {
  const running = startTidings(['server', 'start'], { home, env })
  const ended = new Promise(resolve => running.once('close', resolve))
  try {
    const ready = async () => (await fetch(`http://127.0.0.1:${port}/readyz`)).status
    await eventually('the server to be ready', ready, status => status === 200, { timeoutMs: 60_000 })
    const { code, error } = await server('restore', backup, '--yes')
    assert.equal(code, 1)
    assert.match(error.message, /process \d+ on .* runs on this database/)
  } finally {
    running.kill('SIGTERM')
    await ended
  }
  const other = join(home, 'other')
  writeFileSync(other, 'not a database'.repeat(999))
  assert.match((await server('restore', other, '--yes')).error.message, /is not a database/)
})

test('what was revoked after the backup stays revoked after a restore', async () => {
  revoke(revoked.id)
  const { code, data, error } = await server('restore', backup, '--yes')
  assert.equal(code, 0, JSON.stringify(error))
  assert.deepEqual(data.revokedTokens, [revoked.id])
  assert.deepEqual(revokedIn(path), [revoked.id])
  assert.deepEqual(revokedIn(data.kept), [revoked.id])
  assert.equal(statSync(path).mode & 0o777, 0o600)
  assert.equal(
    (await server('doctor')).data?.checks.find(({ name }: { name: string }) => name === 'schema').status,
    'ok',
  )
})

test('the list of revocations is taken after a restore by other means; without one every token goes', async () => {
  const list = join(home, 'revocations.json')
  writeFileSync(list, (await server('revocations')).stdout)
  assert.equal(JSON.parse(readFileSync(list, 'utf8')).length, 1)
  // Put back by hand, as MySQL would be.
  const database = new DatabaseSync(path)
  database.exec('UPDATE access_tokens SET revoked_at = NULL')
  database.close()
  assert.equal((await server('restored')).code, 2, 'it says nothing by itself')
  assert.deepEqual((await server('restored', '--revocations', list)).data.revokedTokens, [revoked.id])
  assert.deepEqual(revokedIn(path), [revoked.id])
  const another = (await server('token', '--name', 'another', '--permissions', 'read')).data
  const misspelt = await server('restored', '--revoke-tokens', '--keep', 'nobody', '--yes')
  assert.equal(misspelt.code, 3)
  assert.deepEqual(revokedIn(path), [revoked.id], 'nothing is revoked')
  const { data } = await server('restored', '--revoke-tokens', '--keep', 'kept', '--yes')
  assert.deepEqual(data.revokedTokens, [another.id])
})

test('a webhook’s secret is sealed in a backup, and opens after the restore with the same master key', async () => {
  const { id, secret } = await addSigned(env.TIDINGS_DATABASE_URL, env.TIDINGS_MASTER_KEY)
  const signed = join(home, 'signed.sqlite')
  await server('backup', signed)
  const bytes = readFileSync(signed, 'latin1')
  assert.ok(bytes.includes(id))
  for (const hidden of [secret, secret.slice(6), 'value-of-gate']) assert.ok(!bytes.includes(hidden), hidden)
  const database = new DatabaseSync(path)
  database.prepare('UPDATE webhooks SET request_sealed = NULL WHERE id = ?').run(id)
  database.close()
  assert.equal((await server('restore', signed, '--yes')).code, 0)
  const check = async (masterKey: string) => {
    const { stdout } = await tidings(['server', 'doctor'], { home, env: { ...env, TIDINGS_MASTER_KEY: masterKey } })
    const { checks } = JSON.parse(stdout) as { checks: { name: string; status: string }[] }
    return checks.find(({ name }) => name === 'webhook secrets')!.status
  }
  assert.equal(await check(env.TIDINGS_MASTER_KEY), 'ok')
  assert.equal(await check(randomBytes(32).toString('base64')), 'problem')
  const restored = new DatabaseSync(path)
  const { request_sealed } = restored.prepare('SELECT request_sealed FROM webhooks WHERE id = ?').get(id)!
  restored.close()
  const sealer = createSealer([Buffer.from(env.TIDINGS_MASTER_KEY, 'base64')])
  assert.equal(openCarried(sealer, id, String(request_sealed)).secrets[0]!.secret, secret)
})

test('a signing key that was revoked after the backup stays revoked', async () => {
  await server('keys', 'rotate')
  const before = (await server('keys', 'list')).data as { kid: string; status: string }[]
  const later = join(home, 'later.sqlite')
  await server('backup', later)
  const signing = before.find(({ status }) => status === 'signing')!.kid
  await server('keys', 'revoke', signing, '--yes')
  assert.deepEqual((await server('restore', later, '--yes')).data.revokedKeys, [signing])
  const after = (await server('keys', 'list')).data as { kid: string; status: string }[]
  assert.equal(after.find(({ kid }) => kid === signing)?.status, 'revoked')
})

test('the write-ahead log shrinks again when those who read have gone', async () => {
  const reader = new DatabaseSync(path)
  reader.exec('BEGIN')
  reader.prepare('SELECT COUNT(*) FROM users').get()
  const writer = await connect(`sqlite:${path}`)
  const write = (n: number) =>
    writer.knex.raw('UPDATE users SET name = ? WHERE created_at >= 0', [String(n).repeat(200).slice(0, 200)])
  await writer.knex.raw(
    `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
     INSERT INTO users (id, name, created_at, updated_at) SELECT 'u' || i, 'x', i, i FROM n`,
  )
  for (let n = 0; n < 3; n += 1) await write(n)
  const size = () => statSync(`${path}-wal`).size
  assert.ok(size() > 20_000_000, `${size()}`)
  reader.exec('COMMIT')
  reader.close()
  await write(4)
  await writer.knex.raw("UPDATE users SET name = 'y' WHERE id = 'u1'")
  await writer.knex.raw("UPDATE users SET name = 'z' WHERE id = 'u1'")
  assert.ok(size() <= 16 * 1024 * 1024, `${size()}`)
  await writer.close()
})
