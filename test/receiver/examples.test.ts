import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { startSender } from './sender.ts'

const run = promisify(execFile)
const repository = fileURLToPath(new URL('../..', import.meta.url))
const tsc = path.join(repository, 'node_modules/typescript/bin/tsc')
const sender = await startSender()

/** An integrator's project: the examples, and in its node_modules the built package as npm would put it there. */
const startProject = async (): Promise<string> => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-integrator-'))
  await cp(path.join(repository, 'examples'), folder, { recursive: true })
  await writeFile(path.join(folder, 'package.json'), '{"type":"module","private":true}')
  const installed = path.join(folder, 'node_modules')
  await mkdir(path.join(installed, 'tidings'), { recursive: true })
  for (const name of await readdir(path.join(repository, 'node_modules'))) {
    if (name === 'tidings') continue
    await symlink(path.join(repository, 'node_modules', name), path.join(installed, name))
  }
  for (const part of ['bin', 'package.json']) {
    await cp(path.join(repository, part), path.join(installed, 'tidings', part), { recursive: true })
  }
  const outDir = path.join(installed, 'tidings/dist')
  await run(process.execPath, [tsc, '--project', path.join(repository, 'tsconfig.build.json'), '--outDir', outDir])
  return folder
}

describe('in a project that has installed Tidings', () => {
  let folder: string
  before(async () => {
    folder = await startProject()
  })
  after(() => rm(folder, { recursive: true, force: true }))

  test('the examples pass the strictest type check', async () => {
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
    await writeFile(path.join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['*.ts'] }))
    const { stdout } = await run(process.execPath, [tsc], { cwd: folder }).catch(error => error)
    assert.equal(stdout, '')
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
        const [printed] = await once(child.stdout, 'data')
        assert.match(String(printed), /project_report_quarterly_overdue/)
      } finally {
        if (child.kill()) await once(child, 'exit')
      }
    })
  }
})
