import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { type Answer, connectedTo, credentials, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

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
  const { code, stdout, stderr } = await run([...create, '--organisation', 'o1', '--expires', '2027-01-01'], created)
  assert.equal(code, 0)
  assert.deepEqual(server.received[0]!.variables, {
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
  const done = await run(['tokens', 'revoke', 'tk_new', '--yes'], { data: { accessTokens: [token] } }, revoked)
  assert.equal(done.code, 0)
  assert.deepEqual(server.received[0]!.variables.query, { selector: { apiKey: 'tk_new' } })
  assert.deepEqual(server.received[1]!.variables, { id: token.id })
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
