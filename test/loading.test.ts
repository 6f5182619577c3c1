import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { it } from 'node:test'

/** What is loaded of Node by a process that has imported a module, and then run some code with what it exports. */
const loadedBy = (module: string, then = ''): string[] => {
  const code = `const imported = await import(${JSON.stringify(new URL(module, import.meta.url).href)})
    ${then}
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

it("The answer that a server is ready does without Node's own fetch too, which Koa asks for with an object", () => {
  const loaded = loadedBy(
    '../server/http/health.ts',
    `const { default: Koa } = await import('koa')
    const { get } = process.getBuiltinModule('node:http')
    const server = new Koa().use(imported.health({ fault: async () => undefined })).listen(0, '127.0.0.1')
    await new Promise(resolve => server.once('listening', resolve))
    const url = 'http://127.0.0.1:' + server.address().port + '/readyz'
    const answer = await new Promise(resolve => get(url, { agent: false }, resolve))
    if (answer.statusCode !== 200 || !/json/.test(answer.headers['content-type'])) throw new Error('not ready')
    server.close()
    answer.resume()`,
  )
  assert.deepEqual(
    loaded.filter(name => name.includes('undici')),
    [],
  )
})
