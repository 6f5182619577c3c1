import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { delimiter, join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { startIssuer } from './issuer.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const issuer = await startIssuer()
const home = temporaryFolder()
const env = { TIDINGS_URL: issuer.url }
const audience = 'https://example.com/hooks'
const jti = '01930000-0000-7000-8000-00000000000a'
const checkOf = (stdout: string, name: string): { status: string; expected: string; advice: string } =>
  JSON.parse(stdout).checks.find((check: { name: string }) => check.name === name)
const statusOf = (stdout: string, name: string): string => checkOf(stdout, name).status

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
      'body_digest passed',
      'webhook skipped',
      'replay skipped',
      'issued_at passed',
    ],
  )
})

test('a body that was changed, and a webhook that is another’s, are exit code 6', async () => {
  const body = issuer.bodyOf(jti)
  const token = await issuer.token(audience, jti, { body })
  const own = '0198a111-1111-7000-8000-00000000000a'
  const of = (text: string, id: string) => ['verify', token, '--body', text, '--webhook-id', id]
  assert.equal((await tidings(of(body, own), { home, env })).code, 0)
  const changed = await tidings(of(`${body} `, own), { home, env })
  assert.equal(changed.code, 6)
  assert.match(changed.stderr, /not valid: body digest failed/)
  const other = await tidings(of(body, own.replace('0198', '0199')), { home, env })
  assert.equal(other.code, 6)
  assert.match(other.stderr, /not valid: webhook failed/)
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
  assert.match(stdout, /→ They differ in path\./)
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
  const head =
    `POST /hooks HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer ` +
    `${await issuer.token(audience, jti)}\r\n\r\n`
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

const verify = async (...args: string[]) => tidings(['verify', ...args], { home, env })

test('an expired token is told with how long ago, whose clock is off, and how to check it as of its time', async () => {
  const issuedAtSeconds = Math.floor(Date.now() / 1000) - 400
  const { stdout } = await verify(await issuer.token(audience, jti, { issuedAtSeconds }))
  const { advice } = checkOf(stdout, 'expiry')
  assert.match(advice, /^It expired 1 min 4\d(\.\d)? s ago\. This machine’s clock agrees with the issuer’s/)
  const at = /--at (\S+)$/.exec(advice)![1]!
  assert.equal(Date.parse(at), issuedAtSeconds * 1000)
})

test('a token that only this machine’s clock takes for expired is told as such', async t => {
  const slow = createServer((_request, response) => {
    response.sendDate = false
    response.writeHead(200, { date: new Date(Date.now() - 600_000).toUTCString() })
    response.end(JSON.stringify({ keys: issuer.keys }))
  })
  await new Promise<void>(resolve => slow.listen(0, '127.0.0.1', resolve))
  t.after(() => slow.close())
  const jwks = `http://127.0.0.1:${(slow.address() as AddressInfo).port}/jwks.json`
  const token = await issuer.token(audience, jti, { issuedAtSeconds: Math.floor(Date.now() / 1000) - 600 })
  const { stdout } = await verify(token, '--jwks', jwks)
  assert.match(checkOf(stdout, 'expiry').advice, /clock is (10 min|9 min 5\d s).* ahead of the issuer’s.*still good/)
})

test('an unknown kid is told with the keys that there are, and where they are from', async () => {
  const other = await startIssuer()
  const file = join(temporaryFolder(), 'jwks.json')
  writeFileSync(file, JSON.stringify({ keys: issuer.keys }))
  const token = await other.token(audience, jti)
  const offline = checkOf((await verify(token, '--jwks', file, '--issuer', other.url)).stdout, 'key')
  assert.match(offline.expected, new RegExp(issuer.kid))
  assert.match(offline.advice, new RegExp(`keys in ${file}.*Fetch ${other.url}/.well-known/jwks.json`))
  assert.match(checkOf((await verify(token)).stdout, 'key').advice, new RegExp(`${other.url} made it.*--issuer`))
})

test('without a token the places where one may come from are named', async () => {
  const { code, stderr } = await verify()
  assert.equal(code, 2)
  for (const source of ['TOKEN', '-', '--clipboard', '--request FILE'])
    assert.match(stderr, new RegExp(`tidings verify ${source} `))
  assert.equal((await verify('a.b.c', '--clipboard')).code, 2)
})

test('without a connection the sender that the token names is told, and not believed', async () => {
  const { code, stderr } = await tidings(['verify', await issuer.token(audience, jti)], { home })
  assert.equal(code, 2)
  assert.match(stderr, new RegExp(`--issuer.*says that it comes from ${issuer.url}`))
})

for (const [flag, hasBody] of [
  ['--verbose', false],
  ['--trace', true],
  ['--trace-ascii', true],
] as const) {
  test(`a request is read out of what curl ${flag} says`, async t => {
    const endpoint = createServer((request, response) => request.resume().on('end', () => response.end('thanks')))
    await new Promise<void>(resolve => endpoint.listen(0, '127.0.0.1', resolve))
    t.after(() => endpoint.close())
    const url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}/hooks`
    const folder = temporaryFolder()
    const body = join(folder, 'body.json')
    const content = JSON.stringify({ eventId: jti, eventType: 'ping', payload: { name: 'Zoë'.repeat(40) } })
    writeFileSync(body, content)
    const told = join(folder, 'told')
    const { stderr } = await promisify(execFile)('curl', [
      '-sS',
      ...(flag === '--verbose' ? [flag] : [flag, told]),
      ...[
        '-H',
        `Authorization: Bearer ${await issuer.token(url, jti, { body: content })}`,
        '--data-binary',
        `@${body}`,
        url,
      ],
    ])
    if (flag === '--verbose') writeFileSync(told, stderr)
    const ended = await verify('--request', told)
    assert.equal(ended.code, 0, ended.stderr + readFileSync(told, 'utf8'))
    assert.equal(statusOf(ended.stdout, 'audience'), 'passed')
    assert.equal(statusOf(ended.stdout, 'jti'), hasBody ? 'passed' : 'skipped')
    assert.equal(statusOf(ended.stdout, 'body_digest'), flag === '--trace' ? 'passed' : 'skipped')
  })
}

test('an answer in place of a request, as curl -i prints it, is told with what prints the request', async () => {
  const stdin = 'HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'
  const { code, stderr } = await tidings(['verify', '--request', '-'], { home, env, stdin })
  assert.equal(code, 2)
  assert.match(stderr, /a response.*--trace-ascii/s)
})

/** Runs `verify --clipboard` with a program of this name in the place of the system's, which prints `text`. */
const withClipboard = async (program: 'xsel' | 'wl-paste', text: string, args: string[] = []) => {
  const bin = join(temporaryFolder(), 'bin')
  mkdirSync(bin)
  writeFileSync(join(bin, 'text'), text)
  writeFileSync(join(bin, program), `#!/bin/sh\ncat ${join(bin, 'text')}\n`, { mode: 0o755 })
  return tidings(['verify', '--clipboard', ...args], {
    home,
    env: {
      ...env,
      PATH: `${bin}${delimiter}${process.env.PATH}`,
      ...(program === 'wl-paste' && { WAYLAND_DISPLAY: 'wayland-0', XDG_SESSION_TYPE: 'wayland' }),
    },
  })
}
const onLinux = { skip: process.platform === 'linux' ? false : 'the clipboard’s programs are replaced on Linux alone' }

test('the clipboard’s Authorization header is verified, under X11 and Wayland', onLinux, async () => {
  const header = `Authorization: Bearer ${await issuer.token(audience, jti)}`
  for (const program of ['xsel', 'wl-paste'] as const) {
    const { code, stdout, stderr } = await withClipboard(program, `${header}\n`, ['--audience', audience])
    assert.equal(code, 0, stderr)
    assert.equal(JSON.parse(stdout).claims.jti, jti)
  }
})

test('a token alone, a whole request and a line of a log in the clipboard are verified too', onLinux, async () => {
  const token = await issuer.token(audience, jti)
  const request = `POST /hooks HTTP/1.1\nHost: example.com\nAuthorization: Bearer ${token}\n\n${issuer.bodyOf(jti)}`
  for (const text of [token, request, `curl -H 'Authorization: Bearer ${token}' ${audience}`]) {
    const { code, stderr } = await withClipboard('xsel', text)
    assert.equal(code, 0, stderr)
  }
})

test('what is in the clipboard is not shown unless it is a token', onLinux, async () => {
  const { code, stdout, stderr } = await withClipboard('xsel', 'correct horse battery staple')
  assert.equal(code, 2)
  assert.match(stderr, /no delivery token in the clipboard.*Copy the Authorization header/s)
  assert.doesNotMatch(stdout + stderr, /horse/)
})

test('where there is no clipboard, it is said what to do instead', onLinux, async () => {
  const { code, stderr } = await tidings(['verify', '--clipboard'], { home, env: { ...env, DISPLAY: '' } })
  assert.equal(code, 1)
  assert.match(stderr, /clipboard cannot be read.*tidings verify -/s)
})
