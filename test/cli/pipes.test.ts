import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, test } from 'node:test'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { wholeProgram } from '../../cli/main.ts'
import { freePort } from '../support/ports.ts'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

// The output of every command for programs: only JSON, and never the secret.

const home = temporaryFolder()
const at = (name: string) => join(home, name)
const url = await startSandbox(home)
const { profiles } = JSON.parse(readFileSync(at('tidings/profiles.json'), 'utf8'))
const { apiKey, apiSecret } = profiles.sandbox
const endpoint = await startReceiver()
after(() => endpoint.close())

const run = async (line: string[], { stdin = '', env = {} } = {}) => tidings(line, { home, env, stdin })
const json = async (...line: string[]) => JSON.parse((await run(line)).stdout)
const [project] = await json('projects', 'list', '--limit', '1')
const [user] = await json('users', 'list', '--limit', '1')
const [organisation] = await json('organisations', 'list', '--limit', '1')
const webhook = await json('webhooks', 'create', endpoint.url)
const delivery = await json('webhooks', 'ping', webhook.id)
const report = await json(
  ...['reports', 'submit', '--project', project.id, '--quarter', '2024-1', '--submitter', user.id],
)
const [event] = await json('events', 'list', '--limit', '1')
const token = await json('tokens', 'create', '--name', 'old', '--permissions', 'read', '--save', 'old')
writeFileSync(at('webhooks.json'), JSON.stringify([{ url: endpoint.url }]))
writeFileSync(at('query.json'), '{"query":"{ viewer { name } }"}')
const request = endpoint.requests.at(-1)!
writeFileSync(
  at('request.http'),
  `POST ${endpoint.url} HTTP/1.1\r\nauthorization: ${request.headers.authorization}\r\n\r\n${request.rawBody}`,
)

await json('tokens', 'create', '--name', 'old', '--permissions', 'read')
const signed = await json('webhooks', 'create', `${endpoint.url}signed`, '--signing', 'standard')
const pulled = await json('webhooks', 'create', '--transport', 'pull')
await json('trigger', 'token_expired', '--webhook', pulled.id)
const [taken] = await json('deliveries', 'take', pulled.id)

const installation = {
  TIDINGS_HOME: at('nowhere'),
  TIDINGS_DATABASE_URL: `sqlite:${at('installation.sqlite')}`,
  TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
  TIDINGS_PORT: String(await freePort()),
}

await run(['server', 'migrate'], { env: installation })
await run(['server', 'keys', 'rotate'], { env: installation })
const signingKeys = await run(['server', 'keys', 'list', '--output', 'json'], { env: installation })
const [signingKey] = JSON.parse(signingKeys.stdout)
const retired = await json('webhooks', 'create', `${endpoint.url}retired`)
await run(['webhooks', 'disable', retired.id, '--yes'])

interface Use {
  line: string[]
  stdin?: string
  env?: Record<string, string>
  /** How it ends; 0 unless said otherwise. */
  code?: number
  /** It prints a secret on purpose, this once. */
  printsSecret?: true
  /** It runs until it is ended, and prints one object a line; this causes the first. */
  until?: () => Promise<unknown>
}

/** How each command is used here, in an order in which one finds what it needs. */
const uses: Record<string, Use> = {
  'webhooks list': { line: [] },
  stats: { line: [] },
  why: { line: [webhook.id] },
  'deliveries export': { line: [String(endpoint.requests.at(-1)!.body.eventId)] },
  'webhooks show': { line: [webhook.id] },
  'webhooks create': { line: ['--file', at('webhooks.json')] },
  'webhooks update': { line: [webhook.id, '--events', 'all'] },
  'webhooks ping': { line: [webhook.id] },
  'webhooks recover': { line: [webhook.id, '--since', '1h', '--yes'] },
  'webhooks rotate-secret': { line: [signed.id], printsSecret: true },
  'webhooks delete': { line: [retired.id, '--yes'] },
  trigger: { line: ['token_expired', '--webhook', webhook.id] },
  'deliveries list': { line: [] },
  'deliveries show': { line: [delivery.id] },
  'deliveries redeliver': { line: [delivery.id] },
  'deliveries take': { line: [pulled.id] },
  'deliveries answer': { line: [taken.id, '--attempt', String(taken.attempt)] },
  // The endpoint takes everything, forged deliveries too.
  rehearse: { line: [webhook.id], code: 6 },
  'deliveries watch': { line: [], until: () => run(['webhooks', 'ping', webhook.id]) },
  'events list': { line: [] },
  'events show': { line: [event.id] },
  listen: { line: ['--port', '0', '--register'], until: async () => {} },
  verify: { line: ['--request', at('request.http')] },
  'organisations list': { line: [] },
  'organisations upsert': { line: ['Acme', '--id', organisation.id] },
  'projects list': { line: [] },
  'projects upsert': { line: ['Quay', '--organisation', organisation.id] },
  'users list': { line: [] },
  'users upsert': { line: ['Una'] },
  'reports list': { line: [] },
  'reports submit': { line: ['--project', project.id, '--quarter', '2024-2', '--submitter', user.id] },
  'reports approve': { line: [report.id, '--approver', user.id] },
  query: { line: ['webhooks', '{"status":"active"}'] },
  graphql: { line: ['{ viewer { name } }'] },
  sign: { line: ['--body', `@${at('query.json')}`] },
  login: {
    line: ['--profile', 'again', '--url', url, '--api-key', apiKey, '--api-secret', '-'],
    stdin: `${apiSecret}\n`,
  },
  'profiles list': { line: [] },
  'profiles use': { line: ['sandbox'] },
  'profiles remove': { line: ['again', '--yes'] },
  whoami: { line: [] },
  'tokens list': { line: [] },
  'tokens create': { line: ['--name', 'new', '--permissions', 'read'], printsSecret: true },
  'tokens rotate': { line: [token.id], printsSecret: true },
  'tokens revoke': { line: [token.id, '--yes'] },
  'audit list': { line: [] },
  config: { line: [] },
  doctor: { line: ['--webhook', webhook.id] },
  'webhooks disable': { line: [webhook.id, '--yes'] },
  'webhooks enable': { line: [webhook.id] },
  'server migrate': { line: [], env: installation },
  'server seed': { line: ['--organisations', '10'], env: installation },
  'server token': { line: ['--name', 'ci', '--permissions', 'admin'], env: installation, printsSecret: true },
  'server keys list': { line: [], env: installation },
  'server keys rotate': { line: [], env: installation },
  'server keys reseal': { line: [], env: installation },
  'server keys revoke': { line: [signingKey.kid, '--yes'], env: installation },
  'server backup': { line: [at('backup.sqlite')], env: installation },
  'server restore': { line: [at('backup.sqlite'), '--yes'], env: installation },
  'server revocations': { line: [], env: installation },
  'server restored': { line: ['--revoke-tokens', '--yes'], env: installation },
  'server check': { line: [], env: installation },
  'server doctor': { line: [], env: installation },
  demo: { line: [] },
}
/** Commands without data: a shell script, a log, a screen, a served address, a protocol. */
const withoutData = ['completion', 'server start', 'dashboard', 'proxy', 'explore', 'mcp']

const leaves = (command: CommandUnknownOpts, path: string[] = []): [path: string, CommandUnknownOpts][] =>
  command.commands.length === 0
    ? [[path.join(' '), command]]
    : command.commands.flatMap(child => leaves(child, [...path, child.name()]))
const commands = leaves(await wholeProgram()).filter(([path]) => !withoutData.includes(path))
const withOption = (option: string) =>
  commands.flatMap(([path, command]) => (command.options.some(({ long }) => long === option) ? [path] : []))

test('every command that there is is tried here', () => {
  assert.deepEqual(commands.map(([path]) => path).toSorted(), Object.keys(uses).toSorted())
})

test('every command that changes something on a server can show its request first', () => {
  const verbs = /\b(create|update|enable|disable|ping|recover|redeliver|upsert|submit|approve|revoke)$/
  // What works on the database itself has no request to show.
  const changing = commands.flatMap(([path]) => (verbs.test(path) && !path.startsWith('server ') ? [path] : []))
  assert.deepEqual(
    changing.filter(path => !withOption('--dry-run').includes(path)),
    [],
  )
})

const inOneLine = (document: string): string => document.replaceAll(/\s+/g, ' ').trim()
/** What --dry-run has shown for a command. */
const shown = new Map<string, string>()

for (const path of withOption('--dry-run')) {
  // What is to be done for a file, or in place of an access token, is found out by asking.
  if (path === 'webhooks create' || path === 'tokens rotate') continue
  test(`${path} --dry-run shows the request and sends nothing`, async () => {
    const line = [...path.split(' '), ...uses[path]!.line, '--dry-run', '--output', 'json']
    const { code, stdout, stderr } = await run(line, { env: { TIDINGS_URL: 'http://127.0.0.1:1' } })
    assert.equal(code, 0, stderr)
    const { method, url, body } = JSON.parse(stdout)
    assert.deepEqual([method, url], ['POST', 'http://127.0.0.1:1/graphql'])
    assert.ok(body.query)
    // It waits longer than a session does, which tells what it sends.
    if (path !== 'deliveries take') shown.set(path, inOneLine(body.query))
  })
}

/** Arguments with which a command asks for confirmation. */
const dangerous: Record<string, string[]> = {
  'webhooks create': ['--file', at('disabling.json')],
  'webhooks update': [webhook.id, '--status', 'disabled'],
  'webhooks rotate-secret': [signed.id, '--grace', '0'],
  'tokens rotate': ['old', '--finish'],
  'deliveries redeliver': ['--webhook', webhook.id, '--status', 'delivered'],
  'server migrate': ['--down'],
}
writeFileSync(at('disabling.json'), JSON.stringify([{ url: endpoint.url, status: 'disabled' }]))

for (const path of withOption('--yes')) {
  test(`${path} refuses where there is nobody to ask, and says what says yes`, async () => {
    const line = [...path.split(' '), ...(dangerous[path] ?? uses[path]!.line)].filter(word => word !== '--yes')
    const name = path === 'profiles remove' ? ['profiles', 'remove', 'old'] : line
    const { code, stdout, stderr } = await run(name, { env: uses[path]!.env ?? {} })
    assert.equal(code, 2, stderr)
    assert.equal(stdout, '')
    assert.match(stderr, /There is no terminal to ask on\.\nConfirm with --yes\./)
  })
}

/** The master key of the installation is as much of a secret as the access token's. */
const secrets = [apiSecret, installation.TIDINGS_MASTER_KEY]
const noSecretIn = (text: string) => {
  for (const secret of secrets) assert.ok(!text.includes(secret), 'a secret was printed')
  assert.doesNotMatch(text, /Signature=/)
}

for (const [path, { line, stdin, env, code: ends = 0, printsSecret, until }] of Object.entries(uses)) {
  test(`${path} --output json prints JSON and nothing else, no secret, and sends what --dry-run shows`, async () => {
    const whole = [...path.split(' '), ...line, '--output', 'json', '--verbose']
    const { code, stdout, stderr } = until
      ? await firstLine(whole, until)
      : await run(whole, { ...(stdin && { stdin }), ...(env && { env }) })
    assert.equal(code, ends, stderr)
    assert.doesNotThrow(() => JSON.parse(stdout), stdout)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
    assert.doesNotMatch(stdout + stderr, /\u001b/)
    if (path !== 'sign') noSecretIn(stdout + stderr)
    if (!printsSecret) assert.doesNotMatch(stdout, /"secret":/)
    assert.ok(stderr.includes(shown.get(path) ?? ''), `${shown.get(path)} is not among ${stderr}`)
  })
}

/** What a command that goes on prints first, once `cause` has happened; it is told to end then. */
const firstLine = async (line: string[], cause: () => Promise<unknown>) => {
  const child = startTidings(line, { home })
  let stdout = ''
  let stderr = ''
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  const began = Promise.withResolvers<void>()
  const printed = Promise.withResolvers<void>()
  child.stderr.on('data', chunk => {
    stderr += chunk
    if (/Watching|Registered/.test(stderr)) began.resolve()
  })
  child.stdout.on('data', chunk => {
    stdout += chunk
    if (stdout.includes('\n')) printed.resolve()
  })
  await Promise.race([began.promise, ended])
  await cause()
  await Promise.race([printed.promise, ended])
  child.kill('SIGINT')
  return { code: await ended, stdout: stdout.slice(0, stdout.indexOf('\n') + 1), stderr }
}

test('every file that the commands have written is for its owner alone', () => {
  const files = readdirSync(at('tidings'))
  assert.deepEqual(files, ['profiles.json'])
  assert.equal(statSync(at('tidings')).mode & 0o777, 0o700)
  assert.equal(statSync(at('tidings/profiles.json')).mode & 0o777, 0o600)
})
