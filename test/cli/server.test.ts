import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { addSigned } from './signed-webhook.ts'
import { temporaryFolder, tidings } from './tidings.ts'

interface Check {
  name: string
  status: string
  found: string
  next: string | null
}

const home = temporaryFolder()
const path = join(home, 'tidings.sqlite')
const env: Record<string, string> = {
  TIDINGS_DATABASE_URL: `sqlite:${path}`,
  TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
  TIDINGS_PORT: '0',
}
const server = async (args: string[], given: Record<string, string> = {}) => {
  const ended = await tidings(['server', ...args], { home, env: { ...env, ...given } })
  return { ...ended, data: ended.stdout === '' ? undefined : JSON.parse(ended.stdout) }
}
const doctor = async (given: Record<string, string> = {}) => {
  const { code, data } = await server(['doctor'], given)
  return { code, check: (name: string) => (data.checks as Check[]).find(each => each.name === name)! }
}

test('doctor names a database that is not there yet, and does not make it', async () => {
  const { code, check } = await doctor()
  assert.equal(code, 1)
  assert.match(check('database').next!, /server migrate/)
  assert.equal(existsSync(path), false)
})

test('doctor tells every fault of the configuration', async () => {
  const { code, data } = await server(['doctor'], { TIDINGS_PORT: 'x', TIDINGS_MASTER_KEY: 'short' })
  assert.equal(code, 1)
  const faults = data.checks.filter(({ name }: Check) => name === 'configuration')
  assert.equal(faults.length, 2)
  assert.doesNotMatch(JSON.stringify(faults), /short/)
})

test('doctor shows no password', async () => {
  const { stdout, stderr } = await server(['doctor'], { TIDINGS_DATABASE_URL: 'mysql://u:hunter2@127.0.0.1:1/t' })
  assert.match(stdout, /mysql:\/\/u@127\.0\.0\.1:1\/t does not answer/)
  assert.doesNotMatch(stdout + stderr, /hunter2/)
})

test('doctor finds a migrated installation well, and says what is still to be made', async () => {
  assert.equal((await server(['migrate'])).code, 0)
  const { code, check } = await doctor()
  assert.equal(code, 0)
  assert.equal(check('schema').status, 'ok')
  assert.equal(check('clock').status, 'ok')
  assert.match(check('signing keys').next!, /server start/)
  assert.match(check('access tokens').next!, /server token/)
})

test('keys are rotated: the next one signs in ten minutes, the one before until then', async () => {
  assert.deepEqual((await server(['keys', 'list'])).data, [])
  const { data: key } = await server(['keys', 'rotate'])
  assert.equal(key.status, 'next')
  assert.ok(Math.abs(Date.parse(key.activeFrom) - Date.parse(key.createdAt) - 600_000) < 1000)
  const { data: keys } = await server(['keys', 'list'])
  assert.deepEqual(
    keys.map(({ status }: { status: string }) => status),
    ['next', 'signing'],
  )
})

test('a key that is revoked is listed as such, and one that is not there is told apart', async () => {
  const { data: before } = await server(['keys', 'list'])
  const signing = before.find(({ status }: { status: string }) => status === 'signing')
  assert.equal((await server(['keys', 'revoke', signing.kid])).code, 2, 'without a terminal it takes --yes')
  const { code, data } = await server(['keys', 'revoke', signing.kid, '--yes'])
  assert.equal(code, 0)
  assert.ok(Date.parse(data.deliveriesFrom) > Date.now())
  const { data: keys } = await server(['keys', 'list'])
  assert.deepEqual(
    keys.map(({ status }: { status: string }) => status),
    ['next', 'revoked'],
  )
  assert.equal((await server(['keys', 'revoke', 'none', '--yes'])).code, 3)
})

test('an access token is made for an organisation by its name, and for none that is not there', async () => {
  await server(['seed'])
  const database = new DatabaseSync(path)
  const { id, name } = database.prepare('SELECT id, name FROM organisations').get() as { id: string; name: string }
  const make = (organisation: string) =>
    server(['token', '--name', 'acme', '--permissions', 'read', '--organisation', organisation])
  assert.equal((await make(name)).code, 0)
  assert.deepEqual(
    database
      .prepare('SELECT organisation_id FROM access_token_organisations')
      .all()
      .map(row => row.organisation_id),
    [id],
  )
  database.close()
  assert.equal((await make('Nobody')).code, 3)
})

test('the master key is replaced in steps, and a step that was left out is refused in words', async () => {
  const next = randomBytes(32).toString('base64')
  const old = env.TIDINGS_MASTER_KEY!
  assert.equal((await server(['token', '--name', 'sealed', '--permissions', 'read'])).code, 0)
  const early = await server(['keys', 'rotate', '--output', 'json'], { TIDINGS_MASTER_KEY: next })
  assert.equal(early.code, 1)
  assert.match(JSON.parse(early.stderr).error.hint, /TIDINGS_MASTER_KEY=new,old/)
  const { code, data } = await server(['keys', 'reseal'], { TIDINGS_MASTER_KEY: `${next},${old}` })
  assert.equal(code, 0)
  assert.ok(data.resealed >= 2)
  env.TIDINGS_MASTER_KEY = next
  const { check } = await doctor()
  assert.equal(check('signing keys').status, 'ok')
  assert.notEqual(check('access tokens').status, 'problem')
  assert.equal(check('master key').status, 'ok')
})

test('doctor finds keys and secrets that the master key does not open, and takes both keys', async () => {
  await server(['token', '--name', 'ci', '--permissions', 'admin'])
  const other = randomBytes(32).toString('base64')
  const { code, check } = await doctor({ TIDINGS_MASTER_KEY: other })
  assert.equal(code, 1)
  assert.equal(check('signing keys').status, 'problem')
  assert.equal(check('access tokens').status, 'problem')
  assert.match(check('signing keys').next!, /new,old/)
  assert.equal((await doctor({ TIDINGS_MASTER_KEY: `${other},${env.TIDINGS_MASTER_KEY}` })).code, 0)
})

test('doctor finds webhooks whose secrets the master key does not open', async () => {
  assert.equal((await doctor()).check('webhook secrets'), undefined, 'there is none yet')
  const { id } = await addSigned(env.TIDINGS_DATABASE_URL!, env.TIDINGS_MASTER_KEY!)
  const good = (await doctor()).check('webhook secrets')
  assert.deepEqual([good.status, /^1 webhook has/.test(good.found)], ['ok', true], good.found)
  const other = randomBytes(32).toString('base64')
  const wrong = (await doctor({ TIDINGS_MASTER_KEY: other })).check('webhook secrets')
  assert.equal(wrong.status, 'problem')
  assert.ok(wrong.found.includes(id), wrong.found)
  assert.match(wrong.next!, /new,old/)
  const both = await doctor({ TIDINGS_MASTER_KEY: `${other},${env.TIDINGS_MASTER_KEY}` })
  assert.equal(both.check('webhook secrets').status, 'ok')
})

test('doctor notes a network guard that opens inside networks to the world', async () => {
  const given = { TIDINGS_ALLOW_NETWORKS: '10.0.0.0/8', TIDINGS_BASE_URL: 'https://tidings.example.com' }
  const { check } = await doctor(given)
  assert.equal(check('network guard').status, 'note')
  assert.match(check('network guard').next!, /10\.0\.0\.1/)
})

test('doctor finds a port that another program has', async t => {
  const taken = createServer(socket => socket.destroy())
  await new Promise<void>(resolve => taken.listen(0, '127.0.0.1', resolve))
  t.after(() => taken.close())
  const { port } = taken.address() as AddressInfo
  const { code, check } = await doctor({ TIDINGS_PORT: String(port) })
  assert.equal(code, 1)
  assert.match(check('port').found, /another program/)
})

test('a database URL that cannot be read is not repeated, since it has a password in it', async () => {
  const home = temporaryFolder()
  const key = randomBytes(32).toString('base64')
  const urls = [
    'root:s3cr#tword@127.0.0.1:1/db',
    'root:12/s3crtword@127.0.0.1:1/db',
    'root:12?s3crtword@127.0.0.1:1/db',
  ]
  for (const [n, command] of ['start', 'doctor', 'migrate'].entries()) {
    const env = { TIDINGS_HOME: home, TIDINGS_DATABASE_URL: `mysql://${urls[n]}`, TIDINGS_MASTER_KEY: key }
    const { code, stdout, stderr } = await tidings(['server', command], { home, env })
    assert.equal(code, 1, stderr)
    assert.match(stdout + stderr, /TIDINGS_DATABASE_URL is no URL such as .* write # as %23/s)
    assert.doesNotMatch(stdout + stderr, /s3cr|tword/)
  }
})

test('seed fills an installation with a month of deliveries, and says what is missing for them', async () => {
  const home = temporaryFolder()
  const own = { TIDINGS_DATABASE_URL: `sqlite:${join(home, 'seeded.sqlite')}` }
  assert.equal((await server(['migrate'], own)).code, 0)
  const without = await server(['seed', '--deliveries', '10'], own)
  assert.equal(without.code, 2)
  assert.match(without.stderr, /--events/)
  const nothing = await server(['seed', '--events', '10'], own)
  assert.equal(nothing.code, 1)
  assert.match(nothing.stderr, /--organisations and --projects/)
  const counts = { organisations: 3, projects: 6, users: 0, webhooks: 5, events: 100, deliveries: 500 }
  const flags = Object.entries(counts).flatMap(([name, count]) => [`--${name}`, String(count)])
  const { code, data, stderr } = await server(['seed', ...flags], own)
  assert.equal(code, 0, stderr)
  assert.deepEqual(data, counts)
  const database = new DatabaseSync(join(home, 'seeded.sqlite'), { readOnly: true })
  const count = (sql: string) => (database.prepare(sql).get() as { n: number }).n
  assert.equal(count('SELECT COUNT(*) AS n FROM deliveries'), 500)
  assert.ok(count('SELECT COUNT(*) AS n FROM attempts') > 500)
  const pending = count("SELECT COUNT(*) AS n FROM deliveries WHERE status = 'pending'")
  assert.equal(count('SELECT COUNT(*) AS n FROM delivery_queue'), pending)
  database.close()
})

test('a host that has no address cannot be listened on, which is told as such', async () => {
  const { code, stderr } = await server(['start'], { TIDINGS_HOST: 'nowhere.invalid' })
  assert.equal(code, 1)
  assert.match(stderr, /The server cannot listen: getaddrinfo \w+ nowhere\.invalid\./)
  assert.match(stderr, /Set TIDINGS_HOST/)
})
