import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { checkout, OLD_NODE, repository, run } from './checkout.ts'

const { version } = JSON.parse(readFileSync(path.join(repository, 'package.json'), 'utf8'))

describe('the tidings program', () => {
  let folder: string
  let program: string
  let remove: () => Promise<void>
  before(async () => {
    ;({ folder, remove } = await checkout())
    program = path.join(folder, 'bin', 'tidings.js')
  })
  after(() => remove())

  for (const flag of ['--version', '-V']) {
    test(`${flag} prints the version and nothing else`, async () => {
      assert.deepEqual(await run(process.execPath, [program, flag]), {
        stdout: `${version}\n`,
        stderr: '',
        code: 0,
        signal: null,
      })
    })
  }

  test('--version is answered on an old Node before anything is installed', async () => {
    const bare = await checkout({ isInstalled: false })
    const { stdout, stderr } = await run(process.execPath, [
      ...OLD_NODE,
      path.join(bare.folder, 'bin/tidings.js'),
      '-V',
    ])
    await bare.remove()
    assert.deepEqual({ stdout, stderr }, { stdout: `${version}\n`, stderr: '' })
  })

  test('hands its arguments to the command line and ends with its exit code', async () => {
    const { stdout, code } = await run(process.execPath, [program, 'webhooks', '3', '--name', 'a "quoted" b'])
    assert.deepEqual(JSON.parse(stdout).argv, ['webhooks', '3', '--name', 'a "quoted" b'])
    assert.equal(code, 3)
  })

  test('runs itself again on the pinned Node where the machine’s own is too old', async () => {
    const { stdout, code, stderr } = await run(process.execPath, [...OLD_NODE, program, 'webhooks', '3', '*'])
    const pinned = JSON.parse(readFileSync(path.join(repository, 'node_modules/node/package.json'), 'utf8')).version
    assert.deepEqual(JSON.parse(stdout), { argv: ['webhooks', '3', '*'], node: pinned })
    assert.deepEqual({ code, stderr }, { code: 3, stderr: '' })
  })

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    test(`passes ${signal} on when it runs on the pinned Node`, async () => {
      const child = spawn(process.execPath, [...OLD_NODE, program, 'wait'], { stdio: ['ignore', 'pipe', 'inherit'] })
      const ended = once(child, 'exit')
      await Promise.race([once(child.stdout, 'data'), ended])
      child.kill(signal)
      const [code] = await ended
      assert.equal(code, signal === 'SIGTERM' ? 143 : 130)
    })
  }

  test('keeps back the warnings about SQLite and type stripping, and no others', async () => {
    const { stderr } = await run(process.execPath, [program, 'warn'])
    assert.doesNotMatch(stderr, /SQLite|Type Stripping/)
    assert.match(stderr, /ExperimentalWarning: Something else/)
    assert.match(stderr, /DeprecationWarning: This is deprecated/)
  })
})

describe('the installed package', () => {
  let folder: string
  let program: string
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-package-'))
    const home = path.join(folder, 'node_modules', 'tidings')
    program = path.join(home, 'bin', 'tidings.js')
    for (const part of ['bin', 'package.json']) {
      await cp(path.join(repository, part), path.join(home, part), { recursive: true })
    }
    await mkdir(path.join(home, 'dist', 'cli'), { recursive: true })
    await writeFile(path.join(home, 'dist/cli/main.js'), 'export const run = async argv => Number(argv[0])')
  })
  after(() => rm(folder, { recursive: true, force: true }))

  test('runs the built command line', async () => {
    assert.equal((await run(process.execPath, [program, '4'])).code, 4)
  })

  test('says which Node it needs when this one is too old', async () => {
    const { code, stderr } = await run(process.execPath, [...OLD_NODE, program, '4'])
    assert.equal(code, 1)
    assert.match(stderr, /^tidings: Tidings needs Node 24 or newer/)
  })
})
