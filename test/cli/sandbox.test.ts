import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { startSandbox } from './sandbox-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

// The command line as people use it, against a sandbox of its own.

const home = temporaryFolder()
const url = await startSandbox(home)

const run = async (...args: string[]) => {
  const ended = await tidings(args, { home })
  assert.equal(ended.code, 0, ended.stderr)
  return ended.stdout
}

test('a sandbox that npm starts says how commands do without npx, and one that is installed need not', async () => {
  const started = async (env: Record<string, string>) => {
    const home = temporaryFolder()
    const child = startTidings(['server', 'start', '--sandbox'], {
      home,
      env: { TIDINGS_HOME: join(home, 'sandbox'), TIDINGS_PORT: '0', ...env },
    })
    let told = ''
    for await (const chunk of child.stderr) {
      told += chunk
      if (/ctrl-C/.test(told)) child.kill('SIGTERM')
    }
    return told
  }
  const byNpm = await started({ npm_lifecycle_event: 'start' })
  assert.match(byNpm, /^ {2}npx tidings demo .*“tidings” is enough there:\n {2}export PATH="\$PWD\/bin:\$PATH"\n/ms)
  assert.doesNotMatch(await started({}), /npx|PATH/)
})

test('a port that is taken is said once, in words for people', async () => {
  const env = { TIDINGS_HOME: join(temporaryFolder(), 'sandbox'), TIDINGS_PORT: new URL(url).port }
  const { code, stderr } = await tidings(['server', 'start', '--sandbox'], { home: temporaryFolder(), env })
  assert.equal(code, 1)
  assert.match(
    stderr,
    /^Error: Another process listens on 127\.0\.0\.1:\d+ already\.\nStop it, or choose another port.*\n$/,
  )
})

const json = async (...args: string[]) => JSON.parse(await run(...args))

test('every list and the token in use are shown by a fresh sandbox', async () => {
  assert.deepEqual((await json('whoami')).permissions, ['admin'])
  for (const noun of ['organisations', 'projects', 'reports']) assert.ok((await json(noun, 'list')).length > 0, noun)
  for (const noun of ['webhooks', 'deliveries']) assert.deepEqual(await json(noun, 'list'), [])
  for (const resource of ['organisations', 'projects', 'users', 'projectReports', 'events', 'accessTokens']) {
    assert.ok((await json('query', resource)).length > 0, resource)
  }
})

test('filters of a list mean what they say', async () => {
  const [first] = await json('organisations', 'list')
  assert.deepEqual(await json('organisations', 'list', '--name', `^${first.name.toUpperCase()}$`), [first])
  const projects = await json('projects', 'list', '--organisation', first.id)
  assert.ok(projects.length > 0)
  assert.ok(projects.every((project: { organisation: { id: string } }) => project.organisation.id === first.id))
  const names = (await json('projects', 'list', '--sort=-name')).map((project: { name: string }) => project.name)
  assert.deepEqual(names, names.toSorted().reverse())
  const [one] = await json('projects', 'list', '--limit', '1')
  const rest = await json('projects', 'list', '--after', one.id)
  assert.equal(rest.length, names.length - 1)
  const place = ['--after', one.id, '--after-values', JSON.stringify([one.name])]
  assert.deepEqual(await json('projects', 'list', ...place), rest)
})

test('curl is served with the headers that sign prints', async () => {
  const file = join(home, 'query.json')
  writeFileSync(file, '{"query":"{ viewer { name } }"}')
  const headers = join(home, 'headers')
  writeFileSync(headers, await run('sign', '--body', `@${file}`))
  const { stdout } = await promisify(execFile)('curl', [
    '-sS',
    '-H',
    `@${headers}`,
    '--data-binary',
    `@${file}`,
    `${url}/graphql`,
  ])
  assert.equal(JSON.parse(stdout).data.viewer.name, 'sandbox')
})

test('an event is received, retried after a failure, told as a story, and its saved request verifies', {
  timeout: 60_000,
}, async t => {
  const saved = join(home, 'saved')
  const listening = startTidings(
    ['listen', '--register', '--port', '0', '--answer', '500,200', '--count', '2', '--save', saved],
    { home },
  )
  t.after(() => listening.kill())
  const ended = new Promise(resolve => listening.once('close', resolve))
  listening.stdout.resume()
  await new Promise<void>(resolve =>
    createInterface(listening.stderr).on('line', line => {
      if (line.startsWith('Registered')) resolve()
    }),
  )
  const [webhook] = await json('webhooks', 'list', '--status', 'active')
  const [project] = await json('projects', 'list')
  const [user] = await json('query', 'users')
  const report = await json('reports', 'submit', '--project', project.id, '--quarter', '2025-1', '--submitter', user.id)
  assert.equal(report.status, 'submitted')
  assert.equal(await ended, 0)

  const [delivery] = await json(
    'deliveries',
    'list',
    '--webhook',
    webhook.id,
    '--type',
    'project_report_quarterly_submitted',
    '--since',
    '1h',
  )
  const story = await run('deliveries', 'show', delivery.id, '--output', 'table')
  assert.match(
    story,
    /attempt 1 +answered 500[\s\S]*waited[\s\S]*attempt 2 +answered 200[\s\S]*Delivered after 2 attempts/,
  )
  const file = readdirSync(saved).findLast(name => name.includes(delivery.id))
  assert.equal((await json('verify', '--request', join(saved, file!))).ok, true)
  assert.equal((await json('webhooks', 'show', webhook.id)).status, 'disabled')
  assert.equal(
    (await json('reports', 'approve', report.id, '--approver', user.id, '--date', '2026-01-31')).approvedDate,
    '2026-01-31',
  )
})

test('a program that answers the ping of the registration with 202 is told so, and no tunnel is blamed', async () => {
  const program = createServer((_request, response) => void response.writeHead(202).end())
  await new Promise<void>(resolve => program.listen(0, '127.0.0.1', resolve))
  const to = `http://127.0.0.1:${(program.address() as AddressInfo).port}/hooks`
  const line = ['listen', '--register', '--port', '0', '--forward', to]
  const { code, stderr } = await tidings(line, { home })
  program.close()
  assert.equal(code, 1, stderr)
  assert.match(stderr, /answered it with 202\. A registration needs exactly 200/)
  assert.doesNotMatch(stderr, /tunnel/)
})

test('--answer-pings rehearses with pings, but not with the one that registers', async () => {
  const listening = startTidings(['listen', '--register', '--port', '0', '--answer-pings', '--answer', '500'], { home })
  listening.stdout.resume()
  const ended = new Promise(resolve => listening.once('close', resolve))
  const id = await new Promise<string>((resolve, reject) => {
    createInterface(listening.stderr).on('line', line => {
      const found = /^Registered as webhook (\S+)\./.exec(line)?.[1]
      if (found) resolve(found)
    })
    ended.then(() => reject(new Error('it did not register')))
  })
  const { code, stdout } = await tidings(['webhooks', 'ping', id], { home })
  assert.equal(code, 1)
  assert.equal(JSON.parse(stdout).attempts[0].statusCode, 500)
  listening.kill('SIGINT')
  assert.equal(await ended, 0)
})

test('a webhook is created, pinged, limited, disabled and enabled again', async () => {
  const listening = startTidings(['listen', '--port', '0'], { home })
  listening.stdout.resume()
  const url = await new Promise<string>(resolve =>
    createInterface(listening.stderr).on('line', line => {
      const found = /^Listening on (\S+)\. /.exec(line)?.[1]
      if (found) resolve(found)
    }),
  )
  try {
    const id = (await run('webhooks', 'create', url, '--output', 'id')).trim()
    assert.equal((await json('webhooks', 'ping', id)).status, 'delivered')
    assert.deepEqual((await json('webhooks', 'update', id, '--events', 'token_expired')).events, ['token_expired'])
    assert.deepEqual((await json('webhooks', 'update', id, '--events', 'all')).events, [])
    assert.equal((await json('webhooks', 'disable', id, '--yes')).status, 'disabled')
    assert.equal((await json('webhooks', 'enable', id)).status, 'active')
  } finally {
    listening.kill('SIGINT')
  }
})

test('what a webhook missed while it was disabled is recovered, shown with its event, and sent again', {
  timeout: 60_000,
}, async t => {
  const listening = startTidings(['listen', '--port', '0'], { home })
  t.after(() => listening.kill())
  listening.stdout.resume()
  const url = await new Promise<string>(resolve =>
    createInterface(listening.stderr).on('line', line => {
      const found = /^Listening on (\S+)\. /.exec(line)?.[1]
      if (found) resolve(found)
    }),
  )
  const file = join(home, 'webhooks.json')
  writeFileSync(file, JSON.stringify([{ url, events: ['project_report_quarterly_submitted'] }]))
  const [made] = await json('webhooks', 'create', '--file', file)
  assert.equal(made.outcome, 'created')
  assert.equal((await json('webhooks', 'create', '--file', file))[0].outcome, 'unchanged')

  await run('webhooks', 'disable', made.id, '--yes')
  const organisation = await json('organisations', 'upsert', 'Recovered')
  const project = await json('projects', 'upsert', 'Lost', '--organisation', organisation.id)
  assert.equal(project.organisation.name, 'Recovered')
  const user = await json('users', 'upsert', 'Una')
  assert.deepEqual(await json('users', 'upsert', 'Una Lind', '--id', user.id), { id: user.id, name: 'Una Lind' })
  await run('reports', 'submit', '--project', project.id, '--quarter', '2024-1', '--submitter', user.id)
  await run('webhooks', 'enable', made.id)

  const recovered = await json('webhooks', 'recover', made.id, '--since', '1h', '--yes')
  assert.equal(recovered.queued, 1)
  // By now the project's report of the quarter just ended may be overdue, too.
  const ofType = ['--type', 'project_report_quarterly_submitted']
  const [event] = await json('events', 'list', '--project', project.id, ...ofType)
  const [sent] = (await json('events', 'show', event.id)).deliveries.filter(
    ({ webhookId }: { webhookId: string }) => webhookId === made.id,
  )
  const again = await json('deliveries', 'redeliver', sent.id)
  assert.notEqual(again.id, sent.id)
  assert.equal(again.webhookId, made.id)
  await run('webhooks', 'disable', made.id, '--yes')
})

test('an access token is rotated: made into a profile, used, and revoked', async () => {
  const made = await json(
    'tokens',
    'create',
    '--name',
    'next',
    '--permissions',
    'admin',
    '--expires',
    '90d',
    '--save',
    'next',
  )
  assert.equal((await json('whoami', '--profile', 'next')).id, made.id)
  assert.ok((await json('tokens', 'list', '--active')).some(({ id }: { id: string }) => id === made.id))
  assert.equal((await json('doctor', '--profile', 'next')).ok, true)
  await run('tokens', 'revoke', made.apiKey, '--yes')
  const refused = await tidings(['whoami', '--profile', 'next'], { home })
  assert.equal(refused.code, 4)
  assert.match(refused.stderr, /revoked|withdrawn/)
})

test('query --explain tells how a query was answered', async () => {
  const { sql, statements } = await json('query', 'organisations', '{"name":"Acme"}', '--explain')
  assert.match(sql, /organisations/)
  assert.equal(statements, 1)
})

test('an id that does not exist is exit code 3 on every noun', async () => {
  const unknown = '01930000-0000-7000-8000-000000000001'
  for (const args of [
    ['webhooks', 'show', unknown],
    ['webhooks', 'ping', unknown],
    ['deliveries', 'show', unknown],
    ['reports', 'approve', unknown, '--approver', unknown],
    ['webhooks', 'recover', unknown, '--since', '1h', '--yes'],
    ['deliveries', 'redeliver', unknown],
    ['events', 'show', unknown],
    ['tokens', 'revoke', unknown, '--yes'],
  ]) {
    assert.equal((await tidings(args, { home })).code, 3, args.join(' '))
  }
})

test('login with the token of a profile saves another one', async () => {
  const { url, apiKey } = await json('config')
  const { profiles } = JSON.parse(readFileSync(join(home, 'tidings', 'profiles.json'), 'utf8'))
  const args = ['login', '--profile', 'again', '--url', url.value, '--api-key', apiKey.value, '--api-secret', '-']
  const { code, stderr } = await tidings(args, { home, stdin: profiles.sandbox.apiSecret })
  assert.equal(code, 0, stderr)
  assert.equal((await json('config')).profile.value, 'again')
})
