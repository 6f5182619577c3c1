import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, suite, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { pastesOf, RUN_WITH_SANDBOX, runnable } from '../support/pasted.ts'
import { freePort } from '../support/ports.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { atFullSize } from '../support/size.ts'
import { launchSandbox } from './sandbox-server.ts'
import { temporaryFolder } from './tidings.ts'

// The commands of the README and of the pages that begin with the sandbox, run as people paste them into whichever
// shell they have. Only addresses differ: ports of this test's own, and a receiver here for that of the other terminal.

const missing = (shell: string) => (spawnSync(shell, ['--version']).status === 0 ? false : `${shell} is not installed`)

const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

/** A folder in which `npx tidings` is the program of this checkout. */
const folderWithProgram = (): { home: string; bin: string } => {
  const home = temporaryFolder()
  const bin = join(home, 'bin')
  mkdirSync(bin)
  const run = `exec '${process.execPath}' '${program}' "$@"\n`
  writeFileSync(join(bin, 'npx'), `#!/bin/sh\nshift\n${run}`, { mode: 0o755 })
  writeFileSync(join(bin, 'tidings'), `#!/bin/sh\n${run}`, { mode: 0o755 })
  return { home, bin }
}

suite('the commands of the first pages', { timeout: 350_000 }, () => {
  const { home, bin } = folderWithProgram()
  const ops = join(home, 'operator')
  mkdirSync(ops)
  let sandbox: Awaited<ReturnType<typeof launchSandbox>>
  let receiver: Receiver
  let opsPort: number
  before(async () => {
    opsPort = await freePort()
    sandbox = await launchSandbox(home)
    receiver = await startReceiver()
  })
  after(async () => {
    await sandbox.stop()
    await receiver.close()
  })

  const run = async (shell: string, paste: string, cwd = home) => {
    const script = join(home, 'paste')
    const here = paste
      // A port of its own, so that whoever listens here already is left alone.
      .replace('listen --register', 'listen --port 0 --register')
      .replaceAll('http://127.0.0.1:4100', sandbox.url)
      .replaceAll('http://127.0.0.1:4200/hooks', receiver.url)
      .replaceAll('4101', String(opsPort))
    writeFileSync(script, here)
    const env = { ...process.env, XDG_CONFIG_HOME: home, PATH: `${bin}:${process.env.PATH}`, HOME: home }
    const child = spawn(shell, [...(shell === 'bash' ? ['-m'] : []), script], { cwd, env })
    const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
    // The receiver here verifies nothing, which a rehearsal says.
    const isRehearsal = here.includes('rehearse')
    assert.equal(code, isRehearsal ? 6 : 0, `${shell}: ${here}\n${stderr}`)
    if (!isRehearsal) assert.doesNotMatch(stderr, /^Error:|command not found/m, `${shell}: ${here}`)
    return { stdout, stderr }
  }

  const [integrator] = pastesOf('docs/integrators.md')
  for (const shell of atFullSize(['bash', 'bash', 'zsh', 'fish'], ['bash'])) {
    test(`the first of an integrator can be pasted into ${shell}, and again`, { skip: missing(shell) }, async () => {
      const { stdout, stderr } = await run(shell, integrator!)
      assert.match(stderr, /Received 2 deliveries, 0 of them not valid\./)
      assert.match(stderr, /The token is valid/, stdout)
    })
  }

  for (const page of RUN_WITH_SANDBOX) {
    for (const [n, paste] of pastesOf(page).entries()) {
      const line = runnable(paste)
      // The server that restores and backs up is that of test/scripts/runbooks.test.ts.
      const isElsewhere = paste === integrator || /server (restored|revocations)|audit list/.test(paste)
      if (line.trim() === '' || isElsewhere) continue
      const isForFish = ['README.md', 'docs/integrators.md', 'docs/signing.md'].includes(page)
      for (const shell of atFullSize(['bash', 'zsh', ...(isForFish ? ['fish'] : [])], ['bash'])) {
        test(`block ${n + 1} of ${page} can be pasted into ${shell}`, { skip: missing(shell) }, async () => {
          await run(shell, line, page === 'docs/operations.md' ? ops : home)
        })
      }
    }
  }
})
