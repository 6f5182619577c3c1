import assert from 'node:assert/strict'
import { cpSync, mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { folder as folderOfBundles, TABLE } from '../../bin/libraries.js'
import { buildLibraries } from '../../scripts/build-libraries.js'
import { repository, run } from './checkout.ts'

const HOOK = path.join(repository, 'bin/libraries.js')

/** What a program prints, with the bundled libraries or without them. */
const printed = async (program: string, { hook = [HOOK], cwd = repository } = {}): Promise<string> => {
  const required = hook.flatMap(file => ['--require', file])
  const { code, stdout, stderr } = await run(process.execPath, [...required, '--input-type=module', '-e', program], {
    cwd,
  })
  assert.equal(code, 0, stderr)
  return stdout.trim()
}

/** A checkout whose one library is bundled, and says where it comes from. */
const checkout = (t: TestContext): string => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-libraries-'))
  t.after(() => rmSync(folder, { recursive: true }))
  mkdirSync(path.join(folder, 'bin'))
  cpSync(HOOK, path.join(folder, 'bin/libraries.js'))
  writeFileSync(path.join(folder, 'bin/package.json'), '{"type":"commonjs"}')
  const modules = path.join(folder, 'node_modules')
  const bundles = path.join(modules, '.cache/libraries', '1700000000000')
  for (const each of [path.join(modules, 'thing'), bundles]) mkdirSync(each, { recursive: true })
  writeFileSync(path.join(modules, '.package-lock.json'), '{}')
  installAt(folder, 1_700_000_000)
  writeFileSync(path.join(modules, 'thing/package.json'), '{"type":"module","exports":"./index.js"}')
  writeFileSync(path.join(modules, 'thing/index.js'), "export const from = 'node_modules'")
  writeFileSync(path.join(bundles, 'thing.mjs'), "export const from = 'a bundle'")
  writeFileSync(path.join(bundles, 'table.json'), '{"thing":"thing.mjs"}')
  return folder
}

const installAt = (folder: string, seconds: number): void =>
  utimesSync(path.join(folder, 'node_modules/.package-lock.json'), seconds, seconds)

const ORIGIN = "const { from } = await import('thing'); console.log(from)"

describe('bundled libraries', () => {
  it('are loaded by a program of the checkout', async () => {
    await buildLibraries()
    assert.match(await printed("console.log(import.meta.resolve('koa'))"), /\/\.cache\/libraries\/.*\/koa\.mjs$/)
  })

  it('export what those of node_modules do, to `import` and to `require`', async () => {
    await buildLibraries()
    const exported = `
      import { createRequire } from 'node:module'
      import { readFileSync } from 'node:fs'
      const table = JSON.parse(readFileSync('${path.join(folderOfBundles()!, TABLE)}', 'utf8'))
      for (const name of Object.keys(table)) console.log(name, Object.keys(await import(name)).sort().join())
      console.log(typeof createRequire('${HOOK}')('koa-compose'))`
    const bundled = await printed(exported)
    assert.ok(bundled.split('\n').length > 25, bundled)
    assert.equal(bundled, await printed(exported, { hook: [] }))
  })

  it('are left alone once something else is installed', async t => {
    const folder = checkout(t)
    const hook = [path.join(folder, 'bin/libraries.js')]
    assert.equal(await printed(ORIGIN, { hook, cwd: folder }), 'a bundle')
    installAt(folder, 1_700_000_001)
    assert.equal(await printed(ORIGIN, { hook, cwd: folder }), 'node_modules')
  })

  it('are those of node_modules for a program in whose place another was installed', async t => {
    const folder = checkout(t)
    const hook = [path.join(folder, 'bin/libraries.js')]
    const removed = `import { rmSync } from 'node:fs'\nrmSync('node_modules/.cache', { recursive: true })\n${ORIGIN}`
    assert.equal(await printed(removed, { hook, cwd: folder }), 'node_modules')
  })
})
