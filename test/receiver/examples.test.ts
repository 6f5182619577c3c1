import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { unlessFullSize } from '../support/size.ts'
import { startProject } from './integrator.ts'
import { startSender } from './sender.ts'

const run = promisify(execFile)
const repository = fileURLToPath(new URL('../..', import.meta.url))
const tsc = path.join(repository, 'node_modules/typescript/bin/tsc')
const sender = await startSender()

describe('in a project that has installed the kit', () => {
  let folder: string
  before(async () => {
    folder = await startProject()
  })
  after(() => rm(folder, { recursive: true, force: true }))

  test('the examples pass the strictest type check', { skip: unlessFullSize }, async () => {
    const compilerOptions = {
      module: 'nodenext',
      target: 'es2024',
      types: ['node'],
      strict: true,
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      // Koa's types do not fit the version of their own dependency.
      skipLibCheck: true,
      noEmit: true,
    }
    await writeFile(
      path.join(folder, 'tsconfig.json'),
      JSON.stringify({ compilerOptions, include: ['*.ts', 'pull/*.ts'] }),
    )
    const { stdout } = await run(process.execPath, [tsc], { cwd: folder }).catch(error => error)
    assert.equal(stdout, '')
  })

  test('the example for Lambda answers the events of a function URL', async () => {
    const { body, authorization } = await sender.request({ audience: 'http://127.0.0.1:3000/hooks' })
    const event = (content: string, isBase64Encoded: boolean) => ({
      requestContext: { http: { method: 'POST' } },
      headers: { authorization },
      body: content,
      isBase64Encoded,
    })
    const events = [
      event(Buffer.from(body).toString('base64'), true),
      event(body, false),
      { requestContext: { http: { method: 'GET' } } },
    ]
    const source = `import { handler } from './lambda.ts'
      for (const event of ${JSON.stringify(events)}) console.log(JSON.stringify(await handler(event)))`
    const { stdout } = await run(process.execPath, ['--input-type=module', '--eval', source], {
      cwd: folder,
      env: { ...process.env, ISSUER: sender.issuer.url },
    })
    const answers = stdout.match(/^\{"statusCode.*$/gm)!.map(line => JSON.parse(line))
    assert.deepEqual(
      answers.map(answer => answer.statusCode),
      [200, 401, 405],
    )
    assert.match(answers[1].headers['www-authenticate'], /replay/)
    assert.match(stdout, /project_report_quarterly_overdue/)
  })

  for (const example of ['koa', 'express', 'fastify', 'fetch']) {
    test(`the example for ${example} receives a delivery, once`, async () => {
      const url = `http://127.0.0.1:${await freePort()}/hooks`
      const env = { ...process.env, PORT: new URL(url).port, ISSUER: sender.issuer.url, AUDIENCE: url }
      const child = spawn(process.execPath, [`${example}.ts`], {
        cwd: folder,
        env,
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      try {
        const eventId = '01930000-0000-7000-8000-000000000001'
        assert.equal((await whenItListens(() => sender.deliver(url, { eventId }))).status, 200)
        assert.equal((await sender.deliver(url, { eventId })).status, 401)
        // An early answer leaves the connection as it was.
        for (let n = 0; n < 3; n++) {
          const signal = AbortSignal.timeout(10_000)
          assert.equal((await fetch(url, { method: 'POST', body: 'x'.repeat(100_000), signal })).status, 401)
        }
        const [printed] = await once(child.stdout, 'data')
        assert.match(String(printed), /project_report_quarterly_overdue/)
      } finally {
        if (child.kill()) await once(child, 'exit')
      }
    })
  }
})
