import assert from 'node:assert/strict'
import { symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { eventually } from '../support/eventually.ts'
import { startSandbox } from './sandbox-server.ts'
import { noTerminal, openTerminal } from './terminal.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// What a person sees who interrupts a command or is asked something, in a real terminal, which must be restored
// afterwards.

const home = temporaryFolder()
const url = noTerminal ? '' : await startSandbox(home)
symlinkSync(fileURLToPath(new URL('../../bin/tidings.js', import.meta.url)), join(home, 'tidings.js'))
const script = join(home, 'run.sh')
writeFileSync(
  script,
  `trap : INT
before=$(stty -a)
node ${join(home, 'tidings.js')} "$@"
code=$?
[ "$before" = "$(stty -a)" ] && printf '\\nclean, %s\\n' $code
`,
)
const env = {
  XDG_CONFIG_HOME: home,
  PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
  TIDINGS_HOME: join(home, 'x'),
}

/** Stands still once a question shows, which is when a person's keys come. */
const standsStill = join(home, 'stands-still.mjs')
writeFileSync(
  standsStill,
  `const { write } = process.stderr
process.stderr.write = function (text, ...rest) {
  const written = write.call(this, text, ...rest)
  if (/: $|enough $/.test(text)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300)
  return written
}
`,
)

/**
 * Runs a command in a terminal, answers each question with keys, and gives what was on the screen and its exit code.
 */
const inTerminal = async (line: string[], ...steps: [question: RegExp, ...keys: string[]][]) => {
  const still = { ...env, NODE_OPTIONS: `--import=${standsStill}` }
  const terminal = await openTerminal(['bash', script, ...line], { env: still, columns: 100 })
  for (const [question, ...keys] of steps) {
    await terminal.waitForOutput(question)
    await terminal.press(...keys)
  }
  const screen = await terminal.waitForOutput(/^clean, \d+$/m)
  return { code: Number(/^clean, (\d+)$/m.exec(screen)![1]), screen }
}
const skip = noTerminal
const webhooksList = async () => JSON.parse((await tidings(['webhooks', 'list'], { home })).stdout)

for (const [what, line, shown, code] of [
  ['listen', ['listen', '--port', '0'], /Listening on/, 0],
  ['deliveries watch', ['deliveries', 'watch'], /^Watching/, 0],
  ['verify -', ['verify', '-'], /Paste it here/, 130],
  ['a question for a secret', ['login', '--url', url, '--api-key', 'k'], /API secret \(not shown\):/, 130],
  ['a question for confirmation', ['profiles', 'remove', 'sandbox'], /\(y\/N\):/, 130],
] as const) {
  test(`ctrl-C at ${what} leaves the terminal as it was`, { skip }, async () => {
    const ended = await inTerminal([...line], [shown, 'C-c'])
    assert.equal(ended.code, code, ended.screen)
    assert.doesNotMatch(ended.screen, /Error|UNEXPECTED/)
  })
}

test('ctrl-C at listen --register disables its webhook', { skip }, async () => {
  const { screen } = await inTerminal(['listen', '--port', '0', '--register'], [/Registered as/, 'C-c'])
  assert.match(screen, /The webhook is disabled/)
  assert.equal((await webhooksList())[0].status, 'disabled')
})

test('a hang-up, as of a closed window, ends listen --register as well', { skip }, async () => {
  const terminal = await openTerminal(['bash', script, 'listen', '--port', '0', '--register'], { env })
  await terminal.waitForOutput(/Registered as/)
  assert.equal((await webhooksList())[0].status, 'active')
  await terminal.close()
  const status = async (): Promise<string> => (await webhooksList())[0].status
  await eventually('the webhook to be disabled', status, seen => seen === 'disabled')
})

test('ctrl-D at a question is told as an input that ended, with what to do', { skip }, async () => {
  for (const [line, question] of [
    [['login', '--url', url], /API key:/],
    [['login', '--url', url, '--api-key', 'k'], /API secret \(not shown\):/],
    [['profiles', 'remove', 'sandbox'], /\(y\/N\):/],
  ] as const) {
    const { code, screen } = await inTerminal([...line], [question, 'C-d'])
    assert.equal(code, 2, screen)
    assert.match(screen, /\nError: The input ended before an answer/)
  }
})

test('what is typed as a secret does not show, nor does it when the login is refused', { skip }, async () => {
  const { code, screen } = await inTerminal(
    ['login', '--profile', 'typed'],
    [/Server/, url, 'Enter'],
    [/API key:/, 'tk_none', 'Enter'],
    [/API secret \(not shown\):/, 'aHVudGVyMmh1bnRlcjI=', 'Enter'],
  )
  assert.equal(code, 4, screen)
  assert.doesNotMatch(screen, /aHVudGVy|hunter2/)
})

test('a list turns pages on Enter, stops on q, and is never cut in silence', { skip }, async () => {
  const made = Array.from({ length: 120 }, (_, index) => `u${index}: upsertUser(name: "User ${index + 100}") { id }`)
  await tidings(['graphql', '-'], { home, stdin: `mutation { ${made.slice(0, 40).join(' ')} }` })
  await tidings(['graphql', '-'], { home, stdin: `mutation { ${made.slice(40, 80).join(' ')} }` })
  await tidings(['graphql', '-'], { home, stdin: `mutation { ${made.slice(80).join(' ')} }` })
  const { code, screen } = await inTerminal(
    ['users', 'list', '--name', '^user '],
    [/The first 50 users\./, 'Enter'],
    [/The first 100 users\./, 'q'],
  )
  assert.equal(code, 0, screen)
  assert.equal(screen.match(/ User \d+$/gm)?.length, 100)
  assert.match(screen, /--after\s+[0-9a-f-]{36}\s+--after-values\s+'\["User\s199"\]'/)

  const quiet = `node ${join(home, 'tidings.js')} users list --quiet </dev/null; echo "=$?="`
  const terminal = await openTerminal(['bash', '-c', quiet], { env })
  assert.match(await terminal.waitForOutput(/^=0=/m), /The first 50 users\. Next page: --after/)
})
