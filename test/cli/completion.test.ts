import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { CommandUnknownOpts } from '@commander-js/extra-typings'
import { idsFrom } from '../../cli/completion/values.ts'
import { wholeProgram } from '../../cli/main.ts'
import { eventTypes } from '../../shared/vocabulary.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { noTerminal, openTerminal } from './terminal.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const server = await startStubServer(({ query }) => ({
  data: {
    rows: query.includes('webhooks')
      ? [
          { id: 'w-1', url: 'https://example.com/a', status: 'active' },
          { id: 'x-2', url: 'https://b', status: 'disabled' },
        ]
      : [{ id: 'o-1', name: 'Acme & Sons' }],
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
  assert.equal(more.length, eventTypes.length - 2)
  assert.ok(more.every(value => /^token_expired,(?!token_expired|ping)\w+$/.test(value)))
})

test('ids of webhooks are completed as argument and as option, with URL and status', async () => {
  assert.deepEqual(await complete('webhooks', 'show', ''), ['w-1', 'x-2'])
  assert.deepEqual(await complete('deliveries', 'list', '--webhook', 'w'), ['w-1'])
  const { stdout } = await tidings(['complete', '--', 'webhooks', 'ping', 'w'], { home, env: connectedTo(server) })
  assert.equal(stdout, 'w-1\thttps://example.com/a active\n')
})

test('organisations are completed by name and by id', async () => {
  assert.deepEqual(await complete('webhooks', 'create', 'https://x', '--organisation', ''), ['Acme & Sons', 'o-1'])
})

test('every id that a command takes is completed, but for those that are new or on the screen already', async () => {
  const withChildren = (command: CommandUnknownOpts): CommandUnknownOpts[] => [
    command,
    ...command.commands.flatMap(withChildren),
  ]
  const taken = (await wholeProgram()).commands.flatMap(noun =>
    withChildren(noun).flatMap(command => [
      ...command.registeredArguments.filter(each => each.name() === 'id').map(() => noun.name()),
      ...command.options.filter(({ flags }) => flags.endsWith('<id>')).map(({ long }) => long ?? ''),
    ]),
  )
  const known = [...Object.keys(idsFrom), '--id', '--after']
  assert.deepEqual(
    taken.filter(name => !known.includes(name)),
    [],
  )
})

test('fields of what is queried are completed, each of a list once, and those of what it refers to', async () => {
  assert.deepEqual(await complete('query', 'webhooks', '--fields', 'stat'), ['status', 'statusReason'])
  const more = await complete('query', 'deliveries', '--fields', 'id,webhook.u')
  assert.deepEqual(more, ['id,webhook.url', 'id,webhook.updatedAt'])
})

test('commands and topics are completed after help', async () => {
  assert.deepEqual(await complete('hel'), ['help'])
  assert.deepEqual(await complete('help', 'e'), ['events', 'explore', 'environment', 'exit-codes'])
  assert.deepEqual(await complete('help', 'webhooks', 'cr'), ['create'])
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

test('a shell that completes from now on starts the program by its path, and no npx', async () => {
  const npx = { npm_command: 'exec', npm_lifecycle_event: 'npx' }
  const { stdout } = await tidings(['completion', '--help'], { home, env: npx })
  assert.match(stdout, /source <\(\/\S+\/bin\/tidings\.js completion bash\)/)
  assert.doesNotMatch(stdout, /[$(] ?npx|&& npx/)
})

/** The folder with `tidings` for the shells, and the environment with its server. */
const bin = join(home, 'bin')
mkdirSync(bin)
symlinkSync(fileURLToPath(new URL('../../bin/tidings.js', import.meta.url)), join(bin, 'tidings'))
writeFileSync(join(bin, 'npx'), '#!/bin/sh\n[ "$1" = --no ] && shift\nexec "$@"\n', { mode: 0o755 })
const env = {
  ...connectedTo(server),
  XDG_CONFIG_HOME: home,
  PATH: `${bin}:${dirname(process.execPath)}:${process.env.PATH}`,
}
const without = (shell: string) => (spawnSync(shell, ['-c', ':']).status === 0 ? false : `${shell} is not installed`)

/** The line after a tab in a shell's line editor, for each of these. */
const pressTab = async (shell: string[], settingUp: string[], lines: string[]) => {
  const terminal = await openTerminal(shell, { env: { ...env, PS1: '> ' }, columns: 200 })
  await terminal.press([...settingUp, 'echo re""ady'].join('; '), 'Enter')
  await terminal.waitForOutput(/^ready$/m)
  const completed: string[] = []
  for (const line of lines) {
    await terminal.press(line, 'Tab', 'C-x')
    const shown = await terminal.waitForOutput(new RegExp(`(?:^|\n)<[^>]*>(?:[\\s\\S]*\n<[^>]*>){${completed.length}}`))
    completed.push(
      shown
        .match(/^<[^>]*>$/gm)!
        .at(-1)!
        .slice(1, -1),
    )
  }
  return completed
}
const lines = [
  'tidings deliv',
  'tidings webhooks show w',
  'tidings webhooks create --events tok',
  'tidings webhooks list --output=nd',
  'tidings events list --organisation Acm',
  'npx tidings webhooks show w',
]
const completedLines = [
  'tidings deliveries ',
  'tidings webhooks show w-1 ',
  'tidings webhooks create --events token_expired ',
  'tidings webhooks list --output=ndjson ',
  'tidings events list --organisation Acme\\ \\&\\ Sons ',
  'npx tidings webhooks show w-1 ',
]

test('bash completes commands, webhook ids and event types', { skip: without('bash') || noTerminal }, async () => {
  const show = `bind -x '"\\C-x": echo "<$READLINE_LINE>"; READLINE_LINE='`
  assert.deepEqual(
    await pressTab(['bash', '--norc', '--noprofile', '-i'], ['source <(tidings completion bash)', show], lines),
    completedLines,
  )
})

test('zsh completes commands, names, ids and event types, whether compinit has run or not', {
  skip: without('zsh') || noTerminal,
}, async () => {
  const show =
    `show() { print -r -- ""; print -r -- "<$BUFFER>"; BUFFER=; zle reset-prompt }; ` + `zle -N show; bindkey '^X' show`
  const settingUp = ['source <(tidings completion zsh)', show]
  assert.deepEqual(await pressTab(['zsh', '-f', '-i'], settingUp, lines), completedLines)
})

test('fish completes commands, webhook ids and event types, with what each is', { skip: without('fish') }, async () => {
  const script = `tidings completion fish | source
${lines.map(line => `complete -C "${line}"`).join('\n')}
complete -C "tidings webhooks create --file ${join(home, 'bi')}"`
  const { stdout } = await promisify(execFile)('fish', ['--no-config', '-c', script], {
    env: { ...process.env, ...env },
  })
  assert.deepEqual(stdout.trimEnd().split('\n'), [
    'deliveries\tlist and watch deliveries, and show why one did what it did',
    'w-1\thttps://example.com/a active',
    'token_expired',
    '--output=ndjson',
    'Acme & Sons\to-1',
    'w-1\thttps://example.com/a active',
    `${bin}/`,
  ])
})

test('PowerShell, which leaves an empty word and its own -- out, is answered all the same', async () => {
  const { stdout } = await tidings(['complete', '--empty', 'webhooks', 'show'], { home, env: connectedTo(server) })
  assert.match(stdout, /^w-1\t.*\nx-2\t/)
})
