import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { it } from 'node:test'

/** What is loaded of Node by a process that has imported a module. */
const loadedBy = (module: string): string[] => {
  const code = `await import(${JSON.stringify(new URL(module, import.meta.url).href)})
    console.log(JSON.stringify(process.moduleLoadList))`
  return JSON.parse(execFileSync(process.execPath, ['--input-type=module', '--eval', code], { encoding: 'utf8' }))
}

it("A server does without Node's own fetch, which its start would pay for", () => {
  const loaded = loadedBy('../server/main.ts')
  assert.ok(loaded.includes('NativeModule http'))
  assert.deepEqual(
    loaded.filter(name => name.includes('undici')),
    [],
  )
})
