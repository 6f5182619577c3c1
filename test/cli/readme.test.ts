import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, suite, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { launchSandbox } from './sandbox-server.ts'
import { temporaryFolder } from './tidings.ts'

// The README's commands, as people paste them into whichever shell they have.

const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')
const pastes = [...readme.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, lines = '']) => lines)
const integrator = pastes.find(lines => lines.includes('listen --register'))!
const missing = (shell: string) => (spawnSync(shell, ['--version']).status === 0 ? false : `${shell} is not installed`)
const shells: [name: string, check: string][] = [
  ['bash', '-n'],
  ['zsh', '-n'],
  ['fish', '--no-execute'],
]

test('the README has commands to paste, none of them with a comment, which zsh would run', () => {
  assert.ok(pastes.length >= 6, `${pastes.length}`)
  for (const paste of pastes) assert.doesNotMatch(paste, /(^|\s)#|\bsleep\b/)
})

for (const [shell, check] of shells) {
  test(`the README's commands are understood by ${shell}`, { skip: missing(shell) }, () => {
    const script = join(temporaryFolder(), 'paste')
    writeFileSync(script, pastes.join('\n'))
    assert.equal(spawnSync(shell, [check, script], { encoding: 'utf8' }).stderr, '')
  })
}

suite('the five minutes of an integrator', { timeout: 170_000 }, () => {
  const home = temporaryFolder()
  const bin = join(home, 'bin')
  mkdirSync(bin)
  const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
  writeFileSync(join(bin, 'npx'), `#!/bin/sh\nshift\nexec '${process.execPath}' '${program}' "$@"\n`, { mode: 0o755 })
  let sandbox: Awaited<ReturnType<typeof launchSandbox>>
  before(async () => {
    sandbox = await launchSandbox(home)
  })
  after(() => sandbox.stop())
  const script = join(home, 'paste')
  // A port of its own, so that whoever listens here already is left alone.
  writeFileSync(script, integrator.replace('listen --register', 'listen --port 0 --register'))

  for (const shell of ['bash', 'bash', 'zsh', 'fish']) {
    test(`can be pasted into ${shell}, and again`, { skip: missing(shell) }, async () => {
      const env = { ...process.env, XDG_CONFIG_HOME: home, PATH: `${bin}:${process.env.PATH}`, HOME: home }
      const child = spawn(shell, [script], { cwd: home, env })
      const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)])
      assert.equal(child.exitCode ?? 0, 0, stderr)
      assert.match(stderr, /Received 2 deliveries, 0 of them not valid\./)
      assert.match(stderr, /The token is valid/, stdout)
    })
  }
})
