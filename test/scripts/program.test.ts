import assert from 'node:assert/strict'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { buildProgram } from '../../scripts/build-program.js'
import { repository, run } from './checkout.ts'

const SCRIPTS = 'node_modules/.cache/program'

const folderFor = (t: TestContext): string => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-program-'))
  t.after(() => rmSync(folder, { recursive: true }))
  return folder
}

const stateOf = (file: string): string => {
  const { mtimeMs, size } = statSync(file)
  return `${mtimeMs} ${size}`
}

/** A checkout of one source, of which a script has been made that does something. */
const checkout = (t: TestContext, script = ''): string => {
  const folder = folderFor(t)
  cpSync(path.join(repository, 'bin'), path.join(folder, 'bin'), { recursive: true })
  for (const each of ['cli', SCRIPTS]) mkdirSync(path.join(folder, each), { recursive: true })
  const source = path.join(folder, 'cli/main.ts')
  writeFileSync(source, "export const from: string = 'the sources'")
  writeFileSync(
    path.join(folder, SCRIPTS, 'main-1.cjs'),
    `(function (module, exports, require, __filename, __dirname, urlOf) {\nexports.from = 'the script'\n${script}\n})`,
  )
  writeFileSync(
    path.join(folder, SCRIPTS, 'made.json'),
    JSON.stringify({ scripts: { 'cli/main': 'main-1.cjs' }, sources: { 'cli/main.ts': stateOf(source) } }),
  )
  return folder
}

/** A checkout of two programs, with what builds scripts of them. */
const buildable = (t: TestContext): string => {
  const folder = checkout(t)
  rmSync(path.join(folder, SCRIPTS), { recursive: true })
  cpSync(path.join(repository, 'scripts'), path.join(folder, 'scripts'), { recursive: true })
  for (const name of ['package.json', 'package-lock.json']) {
    cpSync(path.join(repository, name), path.join(folder, name))
  }
  for (const name of ['esbuild', '@esbuild', '.package-lock.json']) {
    symlinkSync(path.join(repository, 'node_modules', name), path.join(folder, 'node_modules', name))
  }
  mkdirSync(path.join(folder, 'server/readers'), { recursive: true })
  writeFileSync(path.join(folder, 'server/readers/reader.ts'), "export const from: string = 'a reader'")
  return folder
}
const build = (folder: string) => run(process.execPath, ['scripts/build-program.js'], { cwd: folder })

/** What a process of a checkout prints that loads its program. */
const printed = async (folder: string, { act = '', kind = "'start'", options = [] as string[], code = 0 } = {}) => {
  const loaded = `require('./bin/program.js').load('cli/main', ${kind})`
  const program = `${loaded}.then(({ from }) => { console.log(from); ${act} })`
  const args = ['--disable-warning=ExperimentalWarning', ...options, '-e', program]
  const ended = await run(process.execPath, args, { cwd: folder })
  assert.equal(ended.code, code, ended.stderr)
  return ended.stdout.trim()
}

const keptIn = (folder: string): string[] =>
  readdirSync(path.join(folder, SCRIPTS)).filter(name => /-start-/.test(name))

describe('the program of a server', () => {
  it('is one script that exports what the sources do', async () => {
    await buildProgram()
    const code = `
      const { load } = require('./bin/program.js')
      Promise.all([load('cli/main', 'command'), load('cli/main')]).then(([script, sources]) => {
        console.log(JSON.stringify([Object.keys(script), Object.keys(sources), script.run === sources.run]))
      })`
    const { stdout } = await run(process.execPath, ['--disable-warning=ExperimentalWarning', '-e', code], {
      cwd: repository,
    })
    assert.deepEqual(JSON.parse(stdout), [...Array(2).fill(['run', 'wholeProgram']), false])
  })

  it('is its sources once one of them has changed', async t => {
    const folder = checkout(t)
    const source = path.join(folder, 'cli/main.ts')
    assert.equal(await printed(folder), 'the script')
    writeFileSync(source, "export const from: string = 'a change'")
    assert.equal(await printed(folder), 'a change')
  })

  it('is its sources to a debugger, and to commands that are not of a server', async t => {
    const folder = checkout(t)
    assert.equal(await printed(folder, { options: ['--inspect=0'] }), 'the sources')
    assert.equal(await printed(folder, { kind: 'undefined' }), 'the sources')
  })

  it('is its sources while the script is being replaced', async t => {
    const folder = checkout(t)
    rmSync(path.join(folder, SCRIPTS, 'main-1.cjs'))
    assert.equal(await printed(folder), 'the sources')
  })

  it('is compiled once for the processes of a kind', async t => {
    const folder = checkout(t)
    await printed(folder)
    const [kept, ...others] = keptIn(folder).map(name => path.join(folder, SCRIPTS, name))
    assert.ok(kept && others.length === 0)
    utimesSync(kept, 1, 1)
    await printed(folder)
    assert.equal(statSync(kept).mtimeMs, 1000, 'it was compiled again')
  })

  it('is compiled anew where what is kept is not for it', async t => {
    const folder = checkout(t)
    await printed(folder)
    const [kept] = keptIn(folder)
    writeFileSync(path.join(folder, SCRIPTS, kept!), 'torn')
    assert.equal(await printed(folder), 'the script')
    assert.ok(statSync(path.join(folder, SCRIPTS, kept!)).size > 100)
  })

  it('is kept as a process has compiled it before its heap is compacted, and not by one that fails', async t => {
    const folder = checkout(t)
    await printed(folder, { act: 'process.exitCode = 3', code: 3 })
    assert.deepEqual(keptIn(folder), [])
    const compacting = "require('node:diagnostics_channel').channel('tidings:heap-compacting').publish(undefined)"
    await printed(folder, { act: `${compacting}; process.exitCode = 3`, code: 3 })
    assert.equal(keptIn(folder).length, 1)
  })

  it('finds its files where the checkout is, and not where it was when the script was made', async t => {
    const folder = checkout(t, "exports.from = urlOf('server/schema.graphql')")
    assert.equal(await printed(folder), `file://${folder}/server/schema.graphql`)
  })

  it('is not made of sources that change meanwhile', async t => {
    const folder = buildable(t)
    const inAMinute = Date.now() / 1000 + 60
    utimesSync(path.join(folder, 'cli/main.ts'), inAMinute, inAMinute)
    assert.equal((await build(folder)).code, 0)
    assert.equal(existsSync(path.join(folder, SCRIPTS, 'made.json')), false)
  })

  it('is not made of what is installed otherwise than it is wanted', async t => {
    const folder = buildable(t)
    const lock = path.join(folder, 'package-lock.json')
    writeFileSync(
      lock,
      readFileSync(lock, 'utf8').replace(/("node_modules\/koa": \{\s*"version": )"[^"]*"/, '$1"0.0.1"'),
    )
    assert.equal((await build(folder)).code, 0)
    assert.equal(existsSync(path.join(folder, SCRIPTS, 'made.json')), false)
  })

  it('is made anew after a change, by two at once, and what was made before is removed', async t => {
    const folder = buildable(t)
    assert.equal((await build(folder)).code, 0)
    assert.equal(await printed(folder), 'the sources')
    assert.equal(keptIn(folder).length, 1)
    for (const name of readdirSync(path.join(folder, SCRIPTS))) utimesSync(path.join(folder, SCRIPTS, name), 1, 1)
    writeFileSync(path.join(folder, 'cli/main.ts'), "export const from: string = 'a change'")
    const ended = await Promise.all([build(folder), build(folder)])
    assert.deepEqual(
      ended.map(({ code, stderr }) => [code, stderr]),
      Array(2).fill([0, '']),
    )
    const { scripts } = JSON.parse(readFileSync(path.join(folder, SCRIPTS, 'made.json'), 'utf8'))
    assert.deepEqual(readdirSync(path.join(folder, SCRIPTS)).sort(), [...Object.values(scripts), 'made.json'].sort())
    assert.equal(await printed(folder), 'a change')
    assert.equal(keptIn(folder).length, 1, 'its sources ran')
  })
})
