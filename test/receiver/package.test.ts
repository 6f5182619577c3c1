import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import * as receiver from '../../receiver/index.ts'

const repository = fileURLToPath(new URL('../..', import.meta.url))

/** What a program in this checkout prints, given as source. */
const run = async (type: 'module' | 'commonjs', source: string): Promise<unknown> => {
  const { stdout } = await promisify(execFile)(process.execPath, [`--input-type=${type}`, '--eval', source], {
    cwd: repository,
  })
  return JSON.parse(stdout)
}

const names = Object.keys(receiver).sort()

test('every name of the kit can be imported from tidings/receiver', async () => {
  const source = `import * as kit from 'tidings/receiver'; console.log(JSON.stringify(Object.keys(kit)))`
  const imported = (await run('module', source)) as string[]
  // CommonJS that is imported has these two besides.
  assert.deepEqual(imported.filter(name => name !== 'default' && name !== 'module.exports').sort(), names)
})

test('each name is what the kit exports', async () => {
  const source =
    `import { ${names.join(', ')} } from 'tidings/receiver'; ` +
    `console.log(JSON.stringify([${names.map(name => `typeof ${name}`)}]))`
  assert.deepEqual(
    await run('module', source),
    names.map(() => 'function'),
  )
})

test('CommonJS can require it', async () => {
  const source = `console.log(JSON.stringify(Object.keys(require('tidings/receiver')).sort()))`
  assert.deepEqual(await run('commonjs', source), names)
})
