import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cp, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { pathLine } from '../../cli/output/program.ts'
import { allPages, pageText, pastesOf } from '../support/pasted.ts'
import { checkout, OLD_NODE, repository, run } from './checkout.ts'

// What the pages and `npm start` say to have `tidings` without npx.

const shells: [name: string, ...args: string[]][] = [
  ['bash', '--norc', '--noprofile', '-c'],
  ['zsh', '-f', '-c'],
  ['fish', '--no-config', '-c'],
]
const missing = (shell: string) => (spawnSync(shell, ['-c', ':']).status === 0 ? false : `${shell} is not installed`)

const CLONE = pathLine(false)
const PACKAGE = pathLine(true)

describe('tidings without npx', () => {
  let folder: string
  let clone: string
  let remove: () => Promise<void>
  before(async () => {
    folder = await realpath(await mkdtemp(path.join(tmpdir(), 'tidings shells ')))
    ;({ folder: clone, remove } = await checkout())
    const own = path.join(folder, 'node_modules/tidings')
    await mkdir(path.join(own, 'dist/cli'), { recursive: true })
    await cp(path.join(repository, 'bin'), path.join(own, 'bin'), { recursive: true })
    await writeFile(
      path.join(own, 'dist/cli/main.js'),
      'exports.run = async argv => console.log(JSON.stringify({ argv }))',
    )
    await mkdir(path.join(folder, 'node_modules/.bin'))
    await symlink('../tidings/bin/tidings.js', path.join(folder, 'node_modules/.bin/tidings'))
    for (const [name, args] of [
      ['new', []],
      ['old', OLD_NODE],
    ] as const) {
      await mkdir(path.join(folder, name))
      const words = [process.execPath, ...args].map(word => `'${word}'`).join(' ')
      await writeFile(path.join(folder, name, 'node'), `#!/bin/sh\nexec ${words} "$@"\n`, { mode: 0o755 })
    }
  })
  after(async () => {
    await remove()
    await rm(folder, { recursive: true, force: true })
  })

  /** What a shell prints whose only programs are the machine's and a Node. */
  const told = async ([shell, ...args]: string[], script: string, cwd: string, node = 'new') => {
    const env = { HOME: folder, PATH: `${path.join(folder, node)}:/usr/local/bin:/usr/bin:/bin` }
    const { stdout, stderr, code } = await run(shell!, [...args, script], { cwd, env })
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' }, `${shell}: ${script}`)
    return stdout.trimEnd().split('\n')
  }

  const [readme] = pastesOf('README.md').filter(paste => paste.includes(CLONE))
  for (const shell of shells) {
    const skip = missing(shell[0])
    test(`is what the README has for a clone, in ${shell[0]}`, { skip }, async () => {
      const [answer, where] = await told(shell, `${readme}command -v tidings`, clone)
      assert.deepEqual(JSON.parse(answer!).argv, ['webhooks', 'list'])
      assert.equal(where, path.join(clone, 'bin/tidings'))
    })

    test(`works in other folders and on an older Node too, in ${shell[0]}`, { skip }, async () => {
      const [answer] = await told(shell, `${CLONE}\ncd /\ntidings "a b"`, clone, 'old')
      assert.deepEqual(JSON.parse(answer!), { argv: ['a b'], node: process.versions.node })
    })

    test(`is found where the package is installed, in ${shell[0]}`, { skip }, async () => {
      const [answer] = await told(shell, `${PACKAGE}\ncd /\ntidings "a b"`, folder)
      assert.deepEqual(JSON.parse(answer!).argv, ['a b'])
    })
  }

  test('is on every page that uses npx', () => {
    const using = allPages.filter(page => /npx tidings/.test(pageText(page)) && !/decisions/.test(page))
    assert.ok(using.length > 5, `${using}`)
    assert.deepEqual(
      using.filter(page => !pageText(page).includes(CLONE) && !pageText(page).includes(PACKAGE)),
      [],
    )
  })
})
