import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const server = await startStubServer(({ query }) => ({
  data: {
    rows: query.includes('webhooks')
      ? [
          { id: 'w-1', url: 'https://example.com/a', status: 'active' },
          { id: 'x-2', url: 'https://b', status: 'disabled' },
        ]
      : [{ id: 'o-1', name: 'Acme' }],
  },
}))

/** The candidates for the last of these words. */
const complete = async (...words: string[]) => {
  const { code, stdout, stderr } = await tidings(['complete', '--', ...words], { home, env: connectedTo(server) })
  assert.equal(code, 0)
  assert.equal(stderr, '')
  return stdout.split('\n').flatMap(line => (line === '' ? [] : [line.split('\t')[0]!]))
}

test('commands are completed with what each is for', async () => {
  const { stdout } = await tidings(['complete', '--', 'deliv'], { home })
  assert.match(stdout, /^deliveries\t\w+/)
  assert.deepEqual(await complete('deliveries', 're'), ['redeliver'])
})

test('options of a command and of all commands are completed', async () => {
  assert.deepEqual(await complete('webhooks', 'list', '--s'), ['--selector', '--sort', '--status'])
  assert.deepEqual(await complete('webhooks', 'list', '--pro'), ['--profile'])
})

test('choices are completed, behind an equals sign too, as one word or as bash parts them', async () => {
  assert.deepEqual(await complete('webhooks', 'list', '--status', ''), ['active', 'inactive', 'disabled'])
  assert.deepEqual(await complete('webhooks', 'list', '--output=nd'), ['--output=ndjson'])
  assert.deepEqual(await complete('webhooks', 'list', '--output', '=', 'nd'), ['ndjson'])
})

test('event types are completed, each of a list once', async () => {
  const first = await complete('webhooks', 'create', '--events', 'tok')
  assert.deepEqual(first, ['token_expired'])
  const more = await complete('webhooks', 'create', '--events', 'token_expired,')
  assert.equal(more.length, 3)
  assert.ok(more.every(value => value.startsWith('token_expired,project_report_quarterly_')))
})

test('ids of webhooks are completed as argument and as option, with URL and status', async () => {
  assert.deepEqual(await complete('webhooks', 'show', ''), ['w-1', 'x-2'])
  assert.deepEqual(await complete('deliveries', 'list', '--webhook', 'w'), ['w-1'])
  const { stdout } = await tidings(['complete', '--', 'webhooks', 'ping', 'w'], { home, env: connectedTo(server) })
  assert.equal(stdout, 'w-1\thttps://example.com/a active\n')
})

test('ids of organisations are completed', async () => {
  assert.deepEqual(await complete('webhooks', 'create', 'https://x', '--organisation', ''), ['o-1'])
})

test('profiles are completed', async () => {
  mkdirSync(join(home, 'tidings'), { recursive: true })
  const profile = { url: 'https://x', apiKey: 'k', apiSecret: 's' }
  writeFileSync(join(home, 'tidings', 'profiles.json'), JSON.stringify({ profiles: { production: profile } }))
  assert.deepEqual(await complete('--profile', ''), ['production'])
  assert.deepEqual(await complete('profiles', 'use', 'p'), ['production'])
})

test('where a file is expected, the shell is asked for it', async () => {
  assert.deepEqual(await complete('webhooks', 'create', '--file', ''), [':files'])
})

test('a server that is not reached makes completion silent, not wrong', async () => {
  const { code, stdout, stderr } = await tidings(['complete', '--', 'webhooks', 'show', ''], {
    home,
    env: { TIDINGS_URL: 'http://127.0.0.1:1', TIDINGS_API_KEY: 'k', TIDINGS_API_SECRET: 'AAAA' },
  })
  assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: '', stderr: '' })
})

test('what cannot be completed has no candidates', async () => {
  assert.deepEqual(await complete('nonsense', ''), [])
  assert.deepEqual(await complete('whoami', ''), [])
})

test('each shell gets its script, and another is wrong usage that names them', async () => {
  for (const shell of ['bash', 'zsh', 'fish', 'powershell']) {
    const { code, stdout } = await tidings(['completion', shell], { home })
    assert.equal(code, 0)
    assert.match(stdout, /complete .*--/)
  }
  const { code, stderr } = await tidings(['completion', 'csh'], { home })
  assert.equal(code, 2)
  assert.match(stderr, /bash, zsh, fish, powershell/)
})

test('bash completes with its script', async () => {
  const bin = join(home, 'bin')
  mkdirSync(bin)
  symlinkSync(fileURLToPath(new URL('../../bin/tidings.js', import.meta.url)), join(bin, 'tidings'))
  const script = `PATH=${bin}:${process.execPath.replace(/\/node$/, '')}:$PATH
    source <(tidings completion bash)
    COMP_WORDS=(tidings webhooks show w) COMP_CWORD=3 COMP_TYPE=9
    _tidings 2>/dev/null
    echo "\${COMPREPLY[@]}"`
  const { stdout } = await promisify(execFile)('bash', ['-c', script], {
    env: { ...process.env, ...connectedTo(server), XDG_CONFIG_HOME: home },
  })
  assert.equal(stdout, 'w-1\n')
})
