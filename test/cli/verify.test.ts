import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { startIssuer } from './issuer.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const issuer = await startIssuer()
const home = temporaryFolder()
const env = { TIDINGS_URL: issuer.url }
const audience = 'https://example.com/hooks'
const jti = '01930000-0000-7000-8000-00000000000a'
const statusOf = (stdout: string, name: string): string =>
  JSON.parse(stdout).checks.find((check: { name: string }) => check.name === name).status

test('a good token passes every check that could be made', async () => {
  const args = ['verify', await issuer.token(audience, jti), '--audience', audience, '--body', issuer.bodyOf(jti)]
  const { code, stdout, stderr } = await tidings(args, { home, env })
  assert.equal(code, 0, stderr)
  const { ok, checks, claims } = JSON.parse(stdout)
  assert.equal(ok, true)
  assert.equal(claims.jti, jti)
  assert.deepEqual(
    checks.map((check: { name: string; status: string }) => `${check.name} ${check.status}`),
    [
      'format passed',
      'algorithm passed',
      'key passed',
      'signature passed',
      'issuer passed',
      'audience passed',
      'expiry passed',
      'jti passed',
      'replay skipped',
      'issued_at passed',
    ],
  )
})

test('a token for another audience is exit code 6 and shows the difference', async () => {
  const args = [
    'verify',
    await issuer.token(audience, jti),
    '--audience',
    'https://example.com/other',
    '--output',
    'table',
  ]
  const { code, stdout, stderr } = await tidings(args, { home, env })
  assert.equal(code, 6)
  assert.match(stdout, /✗ audience +expected "https:\/\/example\.com\/other"\n +found +"https:\/\/example\.com\/hooks"/)
  assert.match(stderr, /not valid: audience failed/)
})

test('for a program the checks are on stdout and the error on stderr, each as JSON', async () => {
  const args = ['verify', await issuer.token(audience, jti), '--audience', 'https://b', '--output', 'json']
  const { code, stdout, stderr } = await tidings(args, { home, env })
  assert.equal(code, 6)
  assert.equal(JSON.parse(stdout).ok, false)
  assert.equal(JSON.parse(stderr).error.code, 'VERIFICATION_FAILED')
})

test('a token is read from standard input, with “Bearer ” in front', async () => {
  const stdin = `Authorization: Bearer ${await issuer.token(audience, jti)}\n`
  const { code } = await tidings(['verify', '-', '--audience', audience], { home, env, stdin })
  assert.equal(code, 0)
})

test('an expired token is told as such, and is good as of its own time', async () => {
  const token = await issuer.token(audience, jti, { issuedAtSeconds: Date.parse('2026-01-01T00:00:00Z') / 1000 })
  const now = await tidings(['verify', token], { home, env })
  assert.equal(now.code, 6)
  assert.equal(statusOf(now.stdout, 'expiry'), 'failed')
  const then = await tidings(['verify', token, '--at', '2026-01-01T00:04:59Z'], { home, env })
  assert.equal(then.code, 0)
})

test('keys come from a file when there is no connection', async () => {
  const folder = temporaryFolder()
  writeFileSync(join(folder, 'jwks.json'), JSON.stringify({ keys: issuer.keys }))
  const before = issuer.fetches
  const args = [
    'verify',
    await issuer.token(audience, jti),
    '--jwks',
    join(folder, 'jwks.json'),
    '--issuer',
    issuer.url,
  ]
  assert.equal((await tidings(args, { home })).code, 0)
  assert.equal(issuer.fetches, before)
})

test('the keys of the issuer that was named are used, not those of the issuer that the token names', async () => {
  const other = await startIssuer()
  const { code, stdout } = await tidings(['verify', await other.token(audience, jti)], { home, env })
  assert.equal(code, 6)
  assert.equal(other.fetches, 0)
  assert.equal(statusOf(stdout, 'key'), 'failed')
})

test('a saved request gives token, body and audience', async () => {
  const folder = temporaryFolder()
  const file = join(folder, 'request.http')
  const head = `POST /hooks HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer ${await issuer.token(audience, jti)}\r\n\r\n`
  writeFileSync(file, head + issuer.bodyOf(jti))
  const good = await tidings(['verify', '--request', file], { home, env })
  assert.equal(good.code, 0, good.stderr)
  assert.equal(statusOf(good.stdout, 'audience'), 'passed')
  assert.equal(statusOf(good.stdout, 'jti'), 'passed')
  writeFileSync(file, head + issuer.bodyOf('another'))
  assert.equal((await tidings(['verify', '--request', file], { home, env })).code, 6)
})

test('a saved request to an endpoint without TLS is told from one with it by its token', async () => {
  const token = await issuer.token('http://localhost:8080/hooks', jti)
  const stdin = `POST /hooks HTTP/1.1\nHost: localhost:8080\nAuthorization: Bearer ${token}\n\n${issuer.bodyOf(jti)}`
  assert.equal((await tidings(['verify', '--request', '-'], { home, env, stdin })).code, 0)
})

test('keys that cannot be had are exit code 5', async () => {
  const { code, stderr } = await tidings(['verify', 'a.b.c', '--issuer', 'http://127.0.0.1:1'], { home })
  assert.equal(code, 5)
  assert.match(stderr, /--jwks/)
})

test('what is no token at all is exit code 6, whatever it holds', async () => {
  for (const token of ['', 'x', 'a.b.c', '\u001b[2J.\u001b.\u001b', '.'.repeat(20_000)]) {
    const { code, stdout } = await tidings(['verify', '-', '--output', 'table'], { home, env, stdin: token })
    assert.equal(code, 6)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
    assert.doesNotMatch(stdout, /\u001b/)
  }
})
