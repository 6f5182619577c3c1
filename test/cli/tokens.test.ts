import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { closeSync, existsSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Answer, connectedTo, credentials, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const noFullDevice = existsSync('/dev/full') ? false : 'there is no /dev/full here'

const server = await startStubServer()
const home = temporaryFolder()
const run = (args: string[], ...answers: Answer[]) => {
  server.received.length = 0
  server.answer = () => (answers.length > 1 ? answers.shift()! : (answers[0] ?? { data: {} }))
  return tidings(args, { home, env: connectedTo(server) })
}
const token = {
  id: '01930000-0000-7000-8000-000000000001',
  name: 'ci',
  apiKey: 'tk_new',
  permissions: ['read'],
  seesAllOrganisations: true,
  organisationIds: [],
  expiresAt: null,
  revokedAt: null,
  lastUsedAt: null,
  createdAt: '2026-11-21T00:40:01.123+00:00',
}
const created: Answer = { data: { created: { accessToken: token, apiKey: 'tk_new', secret: 'c2VjcmV0' } } }
const create = ['tokens', 'create', '--name', 'ci', '--permissions', 'read,webhooks']

test('a created access token is printed with its secret, once', async () => {
  const found = { data: { rows: [{ id: 'o1', name: 'Acme' }] } }
  const line = [...create, '--organisation', 'Acme', '--expires', '2027-01-01']
  const { code, stdout, stderr } = await run(line, found, created)
  assert.equal(code, 0)
  assert.deepEqual(server.received[1]!.variables, {
    name: 'ci',
    permissions: ['read', 'webhooks'],
    organisationIds: ['o1'],
    expiresAt: '2027-01-01T00:00:00.000+00:00',
  })
  assert.equal(JSON.parse(stdout).secret, 'c2VjcmV0')
  assert.doesNotMatch(stderr, /c2VjcmV0/)
})

test('--save keeps the secret in a profile and off the screen, and names the token that it replaced', async () => {
  const first = await run([...create, '--save', 'ci'], created)
  assert.equal(first.code, 0)
  assert.doesNotMatch(first.stdout + first.stderr, /c2VjcmV0/)
  const { profiles } = JSON.parse(readFileSync(join(home, 'tidings', 'profiles.json'), 'utf8'))
  assert.deepEqual(profiles.ci, { url: server.url, apiKey: 'tk_new', apiSecret: 'c2VjcmV0' })
  const again = { data: { created: { accessToken: token, apiKey: 'tk_newer', secret: 'c2VjcmV0' } } }
  assert.match((await run([...create, '--save', 'ci'], again)).stderr, /tidings tokens revoke tk_new\b/)
})

test('--save that cannot save is said before a token is made', async () => {
  const closed = temporaryFolder()
  writeFileSync(join(closed, 'tidings'), 'a file where a folder is to be')
  server.received.length = 0
  server.answer = () => created
  const { code, stderr } = await tidings([...create, '--save', 'ci'], {
    home: closed,
    env: connectedTo(server),
  })
  assert.equal(code, 1)
  assert.match(stderr, /The profiles in .*profiles\.json cannot be (read|written): part of its path is not a folder\./)
  assert.equal(server.received.length, 0)
})

const noProc = existsSync('/proc/self') ? false : 'there is no /proc here'

test('--save where no folder can be made is said at once', { skip: noProc, timeout: 20_000 }, async () => {
  server.received.length = 0
  const { code, stderr } = await tidings([...create, '--save', 'ci'], {
    home: temporaryFolder(),
    env: { ...connectedTo(server), XDG_CONFIG_HOME: '/proc' },
  })
  assert.equal(code, 1)
  assert.match(stderr, /The profiles in .*profiles\.json cannot be written: there is no such file or folder\./)
  assert.equal(server.received.length, 0)
})

test('--save that fails after all says which token was made and how to end it', async () => {
  const closed = temporaryFolder()
  server.answer = () => {
    rmSync(join(closed, 'tidings'), { recursive: true })
    writeFileSync(join(closed, 'tidings'), '')
    return created
  }
  const { code, stdout, stderr } = await tidings([...create, '--save', 'ci'], {
    home: closed,
    env: connectedTo(server),
  })
  assert.equal(code, 1, stderr)
  assert.match(stderr, new RegExp(`Access token ${token.id} was created, and its secret is lost\\.`))
  assert.match(stderr, new RegExp(`Revoke it with: tidings tokens revoke ${token.id}`))
  assert.doesNotMatch(stdout + stderr, /c2VjcmV0/)
})

test('where standard output is discarded no token is made', async () => {
  server.received.length = 0
  server.answer = () => created
  const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
  for (const to of ['>&-', '>/dev/null']) {
    const line = `'${process.execPath}' '${program}' ${create.join(' ')} ${to}`
    const env = { ...process.env, ...connectedTo(server), XDG_CONFIG_HOME: home }
    const ended = await promisify(execFile)('sh', ['-c', line], { env }).catch(error => error)
    assert.equal(ended.code, 2, to)
    assert.match(ended.stderr, /The secret would be lost: standard output is discarded/)
  }
  assert.equal(server.received.length, 0)
})

test('a secret that cannot be printed is told of with how to end its token', { skip: noFullDevice }, async () => {
  server.answer = () => created
  const full = openSync('/dev/full', 'w')
  const child = startTidings(create, { home, env: connectedTo(server), stdout: full })
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const stderr = await text(child.stderr)
  closeSync(full)
  assert.equal(await ended, 1, stderr)
  assert.match(stderr, /its secret is lost\. Standard output cannot be written: the disk is full\./)
  assert.match(stderr, /tidings tokens revoke 01930000/)
})

test('a form that would lose the secret is refused before a token is made', async () => {
  const { code } = await run([...create, '--output', 'id'], created)
  assert.equal(code, 2)
  assert.equal(server.received.length, 0)
})

test('an unknown permission is wrong usage that names those that there are', async () => {
  const { code, stderr } = await run(['tokens', 'create', '--name', 'x', '--permissions', 'write'])
  assert.equal(code, 2)
  assert.match(stderr, /read, webhooks, reports, admin/)
})

test('revoking is refused where nobody can be asked, says if it is the one in use, and is done by --yes', async () => {
  const found: Answer = { data: { accessTokens: [{ ...token, apiKey: credentials.apiKey }] } }
  const refused = await run(['tokens', 'revoke', token.id], found)
  assert.equal(refused.code, 2)
  assert.match(refused.stderr, /Revoke access token ci .*It is the one that this command uses.*--yes/s)
  const revoked = { data: { accessToken: { id: token.id, name: 'ci', revokedAt: '2026-11-21T00:40:01.123+00:00' } } }
  const named = { data: { rows: [token] } }
  const shown = { data: { accessTokens: [token] } }
  const done = await run(['tokens', 'revoke', 'tk_new', '--yes'], named, shown, revoked)
  assert.equal(done.code, 0)
  const selector = { $or: [{ name: 'tk_new' }, { apiKey: 'tk_new' }] }
  assert.deepEqual(server.received[0]!.variables.query, { selector, limit: 5 })
  assert.deepEqual(server.received[2]!.variables, { id: token.id })
})

test('of two access tokens of one name, the one that is not revoked is meant', async () => {
  const next = { ...token, id: '01930000-0000-7000-8000-000000000002' }
  const rows = [{ ...token, revokedAt: token.createdAt }, next]
  const { stdout } = await run(['tokens', 'revoke', 'ci', '--dry-run'], { data: { rows } })
  assert.deepEqual(JSON.parse(stdout).body.variables, { id: next.id })
})

test('an access token that is not there is exit code 3', async () => {
  assert.equal((await run(['tokens', 'revoke', token.id, '--yes'], { data: { accessTokens: [] } })).code, 3)
})

test('the list of access tokens tells which are active, and holds no secret', async () => {
  const rows = [
    token,
    { ...token, revokedAt: token.createdAt },
    { ...token, expiresAt: token.createdAt.replace('2026', '2020') },
  ]
  const { stdout } = await run(['tokens', 'list', '--output', 'table'], { data: { rows } })
  const [, ...lines] = stdout.trimEnd().split('\n')
  assert.deepEqual(
    lines.map(line => /(active|revoked|expired)/.exec(line)?.[0]),
    ['active', 'revoked', 'expired'],
  )
  assert.doesNotMatch(server.received[0]!.query, /secret/i)
})
