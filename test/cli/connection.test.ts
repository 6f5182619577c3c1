import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { connectedTo, credentials, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const viewer = {
  id: '0193-viewer',
  name: 'ci',
  apiKey: credentials.apiKey,
  permissions: ['read'],
  seesAllOrganisations: true,
  organisations: [],
  expiresAt: null,
}
const server = await startStubServer(() => ({ data: { viewer } }))

const saved = (profiles: Record<string, { url: string }>, current?: string): string => {
  const home = temporaryFolder()
  mkdirSync(join(home, 'tidings'))
  const complete = Object.fromEntries(
    Object.entries(profiles).map(([name, profile]) => [name, { ...credentials, ...profile }]),
  )
  writeFileSync(join(home, 'tidings', 'profiles.json'), JSON.stringify({ current, profiles: complete }))
  return home
}

const unreachable = 'http://127.0.0.1:1'

test('the profile named sandbox is used when none is chosen', async () => {
  const { code, stdout } = await tidings(['whoami'], { home: saved({ sandbox: { url: server.url } }) })
  assert.equal(code, 0)
  assert.equal(JSON.parse(stdout).name, 'ci')
})

test('the current profile comes before sandbox', async () => {
  const home = saved({ sandbox: { url: unreachable }, other: { url: server.url } }, 'other')
  assert.equal((await tidings(['whoami'], { home })).code, 0)
})

test('the environment comes before the profile', async () => {
  const home = saved({ sandbox: { url: unreachable } })
  assert.equal((await tidings(['whoami'], { home, env: { TIDINGS_URL: server.url } })).code, 0)
})

test('a flag comes before the environment', async () => {
  const env = { ...connectedTo(server), TIDINGS_URL: unreachable }
  assert.equal((await tidings(['whoami', '--url', server.url], { home: temporaryFolder(), env })).code, 0)
})

test('TIDINGS_PROFILE chooses a profile, and --profile comes before it', async () => {
  const home = saved({ a: { url: unreachable }, b: { url: server.url } })
  const { stdout } = await tidings(['config'], { home, env: { TIDINGS_PROFILE: 'a' } })
  assert.deepEqual(JSON.parse(stdout).profile, { value: 'a', source: 'TIDINGS_PROFILE' })
  assert.equal((await tidings(['whoami', '--profile', 'b'], { home, env: { TIDINGS_PROFILE: 'a' } })).code, 0)
})

test('an environment variable that hides part of a named profile is told of', async () => {
  const home = saved({ b: { url: unreachable } })
  const { stderr } = await tidings(['whoami', '--profile', 'b'], { home, env: { TIDINGS_URL: server.url } })
  assert.match(stderr, /TIDINGS_URL in the environment overrides what profile b says/)
})

test('the secret of a profile is not used with another API key', async () => {
  const home = saved({ sandbox: { url: server.url } })
  const { code, stderr } = await tidings(['whoami', '--api-key', 'another'], { home })
  assert.equal(code, 4)
  assert.match(stderr, /no secret for API key another/)
})

test('a secret is read from the file that TIDINGS_API_SECRET_FILE names', async () => {
  const home = temporaryFolder()
  writeFileSync(join(home, 'secret'), `${credentials.apiSecret}\n`)
  const env = {
    TIDINGS_URL: server.url,
    TIDINGS_API_KEY: credentials.apiKey,
    TIDINGS_API_SECRET_FILE: join(home, 'secret'),
  }
  assert.equal((await tidings(['whoami'], { home, env })).code, 0)
})

test('a secret is read from standard input with --api-secret -', async () => {
  const args = ['whoami', '--url', server.url, '--api-key', credentials.apiKey, '--api-secret', '-']
  assert.equal((await tidings(args, { home: temporaryFolder(), stdin: `${credentials.apiSecret}\n` })).code, 0)
})

test('a secret typed on the command line is refused and not repeated', async () => {
  const args = ['whoami', '--url', server.url, '--api-key', credentials.apiKey, '--api-secret', 'hunter2']
  const { code, stdout, stderr } = await tidings(args, { home: temporaryFolder(), stdin: credentials.apiSecret })
  assert.equal(code, 2)
  assert.match(stderr, /--api-secret-file/)
  assert.doesNotMatch(stdout + stderr, /hunter2/)
})

test('a wrong secret of the environment is told with its variable, and not with a login', async () => {
  const env = { ...connectedTo(server), TIDINGS_API_SECRET: Buffer.alloc(32, 9).toString('base64') }
  const { code, stderr } = await tidings(['whoami'], { home: temporaryFolder(), env })
  assert.equal(code, 4)
  assert.match(stderr, /Correct TIDINGS_API_SECRET/)
  assert.doesNotMatch(stderr, /tidings login/)
})

test('the address of the API is taken for the server’s', async () => {
  const env = { ...connectedTo(server), TIDINGS_URL: `${server.url}/graphql` }
  const { stdout } = await tidings(['graphql', '{ x }', '--dry-run'], { home: temporaryFolder(), env })
  assert.equal(JSON.parse(stdout).url, `${server.url}/graphql`)
})

test('without any connection the exit code is 4 and the way to one is told', async () => {
  const { code, stderr } = await tidings(['whoami'], { home: temporaryFolder() })
  assert.equal(code, 4)
  assert.match(stderr, /tidings login/)
})

test('a profile that does not exist is exit code 3 and names those that do', async () => {
  const { code, stderr } = await tidings(['whoami', '--profile', 'nope'], {
    home: saved({ here: { url: server.url } }),
  })
  assert.equal(code, 3)
  assert.match(stderr, /Saved profiles: here/)
})

test('login checks the token, then saves a profile that only its owner can read and that is used next', async () => {
  const home = temporaryFolder()
  const args = ['login', '--profile', 'mine', '--url', server.url, '--api-key', credentials.apiKey, '--api-secret', '-']
  const { code, stdout, stderr } = await tidings(args, { home, stdin: credentials.apiSecret })
  assert.equal(code, 0, stderr)
  const path = join(home, 'tidings', 'profiles.json')
  assert.equal(statSync(path).mode & 0o777, 0o600)
  assert.equal(statSync(join(home, 'tidings')).mode & 0o777, 0o700)
  assert.deepEqual(JSON.parse(readFileSync(path, 'utf8')), {
    profiles: { mine: { url: server.url, ...credentials } },
    current: 'mine',
  })
  assert.doesNotMatch(stdout + stderr, new RegExp(credentials.apiSecret.slice(0, 12)))
  assert.equal((await tidings(['whoami'], { home })).code, 0)
})

test('login saves nothing when the token is refused', async () => {
  const home = temporaryFolder()
  const args = ['login', '--url', server.url, '--api-key', credentials.apiKey, '--api-secret', '-']
  const { code } = await tidings(args, { home, stdin: Buffer.alloc(32, 8).toString('base64') })
  assert.equal(code, 4)
  assert.throws(() => statSync(join(home, 'tidings', 'profiles.json')))
})

test('login takes a token that may not read, which the server would refuse otherwise', async () => {
  const home = temporaryFolder()
  const forbidding = await startStubServer(() => ({ errors: [{ message: 'No.', extensions: { code: 'FORBIDDEN' } }] }))
  const args = ['login', '--url', forbidding.url, '--api-key', credentials.apiKey, '--api-secret', '-']
  assert.equal((await tidings(args, { home, stdin: credentials.apiSecret })).code, 0)
  assert.equal(JSON.parse((await tidings(['profiles'], { home })).stdout)[0].name, 'default')
})

test('a token that sees all is shown without the organisations, which may be too many', async () => {
  const all = await startStubServer(() => ({ data: { viewer } }))
  const { stdout } = await tidings(['whoami'], { home: temporaryFolder(), env: connectedTo(all) })
  assert.deepEqual(JSON.parse(stdout).organisations, [])
  assert.ok(all.received.every(({ query }) => !/\borganisations\b/.test(query)))
})

test('login without a terminal says what is missing', async () => {
  const { code, stderr } = await tidings(['login', '--url', server.url], { home: temporaryFolder() })
  assert.equal(code, 2)
  assert.match(stderr, /--api-key, --api-secret/)
})

test('a profile that others could read is closed to them at the next save', async () => {
  const home = saved({ a: { url: server.url }, b: { url: server.url } })
  const path = join(home, 'tidings', 'profiles.json')
  chmodSync(path, 0o644)
  assert.equal((await tidings(['profiles', 'use', 'b'], { home })).code, 0)
  assert.equal(statSync(path).mode & 0o777, 0o600)
})

test('profiles are listed without their secrets', async () => {
  const { stdout } = await tidings(['profiles'], { home: saved({ a: { url: server.url } }) })
  assert.deepEqual(JSON.parse(stdout), [
    { id: 'a', name: 'a', url: server.url, apiKey: credentials.apiKey, current: false },
  ])
})

test('a profile is removed only when that is confirmed', async () => {
  const home = saved({ a: { url: server.url } })
  assert.equal((await tidings(['profiles', 'remove', 'a'], { home })).code, 2)
  assert.equal((await tidings(['profiles', 'remove', 'a', '--yes'], { home })).code, 0)
  assert.deepEqual(JSON.parse((await tidings(['profiles'], { home })).stdout), [])
})

test('config shows where each setting comes from and not the secret', async () => {
  const { stdout } = await tidings(['config'], { home: temporaryFolder(), env: connectedTo(server) })
  const { url, apiSecret } = JSON.parse(stdout)
  assert.deepEqual(url, { value: server.url, source: 'TIDINGS_URL' })
  assert.deepEqual(apiSecret, { value: '(set)', source: 'TIDINGS_API_SECRET' })
})

const broken = (text = '{"profiles":'): string => {
  const home = temporaryFolder()
  mkdirSync(join(home, 'tidings'))
  writeFileSync(join(home, 'tidings', 'profiles.json'), text)
  return home
}

test('a broken profiles.json stops nothing that does without', async () => {
  const home = broken()
  assert.equal((await tidings(['whoami'], { home, env: connectedTo(server) })).code, 0)
  assert.equal((await tidings(['config'], { home })).code, 0)
  const { code, stderr } = await tidings(['verify', 'a.b.c', '--issuer', server.url, '--jwks', '/dev/null'], { home })
  assert.equal(code, 2)
  assert.doesNotMatch(stderr, /profiles/)
})

test('a broken profiles.json is the fault where something is missing that it might have', async () => {
  for (const line of [['whoami'], ['profiles'], ['profiles', 'use', 'a'], ['whoami', '--profile', 'a']]) {
    const { code, stderr } = await tidings(line, { home: broken() })
    assert.equal(code, 1, stderr)
    assert.match(stderr, /profiles\.json cannot be read: it is not JSON\./)
  }
})

test('login says that a profile cannot be saved before it asks the server', async () => {
  server.received.length = 0
  const home = temporaryFolder()
  writeFileSync(join(home, 'tidings'), '')
  const args = ['login', '--url', server.url, '--api-key', credentials.apiKey, '--api-secret', '-']
  const { code, stderr } = await tidings(args, { home, stdin: credentials.apiSecret })
  assert.equal(code, 1)
  assert.match(stderr, /part of its path is not a folder/)
  assert.equal(server.received.length, 0)
})

test('a folder that cannot be written is told of as such', async () => {
  const home = temporaryFolder()
  writeFileSync(join(home, 'file'), '')
  const folder = join(home, 'file', 'below')
  const listen = await tidings(['listen', '--save', folder], { home, env: connectedTo(server) })
  assert.equal(listen.code, 2, listen.stderr)
  assert.match(listen.stderr, /The folder of --save cannot be used: part of its path is not a folder\./)
  const demo = await tidings(['demo'], { home, env: { TMPDIR: folder } })
  assert.equal(demo.code, 1)
  assert.match(demo.stderr, /file\/below\/tidings-demo-\S* cannot be written/)
  const start = await tidings(['server', 'start', '--sandbox'], { home, env: { TIDINGS_HOME: folder } })
  assert.equal(start.code, 1)
  assert.doesNotMatch(demo.stderr + start.stderr, /This should not happen/)
})
