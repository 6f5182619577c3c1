import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { repository, run } from '../scripts/checkout.ts'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { isAtFullSize, unlessFullSize } from '../support/size.ts'
import { buildKit } from './kit.ts'
import { installRuntimes } from './package/runtimes.ts'
import { post, startSender } from './sender.ts'

/** What is here without an installation: every day the package is tried on this Node alone. */
const OWN = {
  node20: process.execPath,
  node22: process.execPath,
  esbuild: path.join(repository, 'node_modules/esbuild/bin/esbuild'),
  typescript: path.join(repository, 'node_modules/typescript/bin/tsc'),
} as Awaited<ReturnType<typeof installRuntimes>>

describe('the package @tidings/receiver, packed and installed', { skip: unlessFullSize }, () => {
  let folder: string
  let at: Awaited<ReturnType<typeof installRuntimes>>

  before(async () => {
    at = isAtFullSize ? await installRuntimes() : OWN
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-receiver-'))
    await writeFile(path.join(folder, 'package.json'), '{"type":"module","private":true}')
    const kit = path.join(folder, 'kit')
    await buildKit(kit)
    const options = ['--ignore-scripts', '--loglevel=error', '--pack-destination', folder]
    const packed = await run('npm', ['pack', ...options], { cwd: kit })
    assert.equal(packed.code, 0, packed.stderr)
    const quiet = ['--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error', '--engine-strict']
    const installed = await run('npm', ['install', ...quiet, packed.stdout.trim().split('\n').at(-1)!], {
      cwd: folder,
    })
    assert.equal(installed.code, 0, installed.stderr)
    await cp(path.join(repository, 'test/receiver/package'), folder, { recursive: true })
    const vectors = await readFile(path.join(repository, 'docs/receivers/vectors.json'), 'utf8')
    await writeFile(path.join(folder, 'vectors.mjs'), `export default ${vectors}`)
  })
  after(() => rm(folder, { recursive: true, force: true }))

  const fine = {
    statuses: [200, 401, 401, 405],
    types: ['token_expired', 'token_expired'],
    wrongVectors: [],
    failures: [],
  }
  const output = async (program: string, args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(program, args, { cwd: folder })
    assert.equal(code, 0, stderr || stdout)
    return stdout
  }
  const outcome = async (program: string, ...args: string[]) => JSON.parse(await output(program, args))

  test('brings jose and nothing else, and carries no test, source or Node’s own module', async () => {
    const modules = path.join(folder, 'node_modules')
    const names = (await readdir(modules)).filter(name => !name.startsWith('.'))
    assert.deepEqual(names.sort(), ['@tidings', 'jose'])
    const home = path.join(modules, '@tidings/receiver')
    const files = (await readdir(home, { recursive: true })).filter(name => /\.\w+$/.test(name))
    assert.deepEqual(
      files.filter(name => !/\.(d\.ts|js)$|package\.json$|README\.md$/.test(name)),
      [],
    )
    for (const name of files.filter(it => it.endsWith('.js'))) {
      const source = await readFile(path.join(home, name), 'utf8')
      const ofNode = [...source.matchAll(/from ['"](node:[^'"]+)|import\(['"](node:[^'"]+)/g)]
      assert.equal(ofNode.length, 0, name)
      assert.doesNotMatch(source.replaceAll(/\/\*[^]*?\*\//g, ''), /\bBuffer(\(|\.\w)|\bprocess\.\w/, name)
    }
  })

  test('runs on Node 20', async () => assert.deepEqual(await outcome(at.node20, 'run.mjs'), fine))
  test('runs on Node 22', async () => assert.deepEqual(await outcome(at.node22, 'run.mjs'), fine))
  test('runs on Node 24', async () => assert.deepEqual(await outcome(process.execPath, 'run.mjs'), fine))
  test('runs on Bun', async () => assert.deepEqual(await outcome(at.bun, 'run.mjs'), fine))
  test('runs on Deno', async () => assert.deepEqual(await outcome(at.deno, 'run', '--allow-all', 'run.mjs'), fine))

  for (const [version, node] of [
    ['20', () => at.node20],
    ['22', () => at.node22],
  ] as const) {
    test(`can be required by CommonJS on Node ${version}`, async () => {
      const source = `console.log(JSON.stringify(typeof require('@tidings/receiver').createReceiver))`
      assert.equal(await outcome(node(), '--input-type=commonjs', '--eval', source), 'function')
    })
  }

  test('runs bundled by esbuild', async () => {
    await output(at.esbuild, ['run.mjs', '--bundle', '--format=esm', '--platform=neutral', '--outfile=esbuild.mjs'])
    assert.deepEqual(await outcome(at.node20, 'esbuild.mjs'), fine)
  })

  test('runs bundled by Rollup', async () => {
    const config = `import resolve from ${JSON.stringify(at.nodeResolve)}
      const names = { entryFileNames: '[name].mjs', chunkFileNames: '[name].mjs' }
      const output = { dir: 'rollup', ...names }
      export default { input: 'run.mjs', external: /^node:/, plugins: [resolve()], output }`
    await writeFile(path.join(folder, 'rollup.config.mjs'), config)
    await output(process.execPath, [at.rollup, '--config', 'rollup.config.mjs', '--silent'])
    assert.deepEqual(await outcome(at.node22, 'rollup/run.mjs'), fine)
  })

  test('runs in a Worker, with Durable Objects as its replay store', async () => {
    await output(at.esbuild, ['worker.mjs', '--bundle', '--format=esm', '--platform=neutral', '--outfile=bundle.mjs'])
    await serveWorker('bundle.mjs', '', async url => {
      const response = await whenItListens(() => fetch(url))
      assert.deepEqual(await response.json(), fine)
    })
  })

  test('the example of a Worker receives a delivery, once', async () => {
    await cp(path.join(repository, 'examples/worker.ts'), path.join(folder, 'example.ts'))
    await output(at.esbuild, ['example.ts', '--bundle', '--format=esm', '--platform=neutral', '--outfile=example.mjs'])
    const sender = await startSender()
    const audience = 'https://worker.example/hooks'
    const bindings = Object.entries({ ISSUER: sender.issuer.url, AUDIENCE: audience })
    const more = bindings.map(([name, text]) => `, (name = "${name}", text = "${text}")`).join('')
    await serveWorker('example.mjs', more, async url => {
      const eventId = '01930000-0000-7000-8000-000000000001'
      const deliver = async () => post(url, await sender.request({ eventId, audience }))
      assert.equal((await whenItListens(deliver)).status, 200)
      const again = await deliver()
      assert.deepEqual([again.status, ((await again.json()) as { error: string }).error], [401, 'replay'])
    })
  })

  /** Has workerd run a module, with Durable Objects and more bindings, while `use` is at it. */
  const serveWorker = async (bundle: string, bindings: string, use: (url: string) => Promise<void>): Promise<void> => {
    const port = await freePort()
    const config = `using Workerd = import "/workerd/workerd.capnp";
      const config :Workerd.Config = (
        services = [(name = "main", worker = .worker), (name = "internet", network = (allow = ["private"]))],
        sockets = [(name = "http", address = "127.0.0.1:${port}", http = (), service = "main")],
      );
      const worker :Workerd.Worker = (
        modules = [(name = "worker", esModule = embed "${bundle}")],
        compatibilityDate = "2026-01-01",
        durableObjectNamespaces = [(className = "ReplayStoreObject", uniqueKey = "replays")],
        durableObjectStorage = (inMemory = void),
        bindings = [(name = "REPLAYS", durableObjectNamespace = "ReplayStoreObject")${bindings}],
      );`
    await writeFile(path.join(folder, 'config.capnp'), config)
    const child = spawn(at.workerd, ['serve', 'config.capnp'], { cwd: folder, stdio: ['ignore', 'inherit', 'inherit'] })
    try {
      await use(`http://127.0.0.1:${port}/hooks`)
    } finally {
      if (child.kill('SIGKILL')) await once(child, 'exit')
    }
  }

  const strict = {
    strict: true,
    noEmit: true,
    types: [],
    lib: ['es2022', 'dom'],
    target: 'es2022',
    skipLibCheck: false,
  }
  for (const [name, compilerOptions, type, version] of [
    ['node16 from an ES module', { module: 'node16', moduleResolution: 'node16' }, 'module'],
    ['node16 from a CommonJS module', { module: 'node16', moduleResolution: 'node16' }, 'commonjs'],
    ['CommonJS with the resolution of Node 10', { module: 'commonjs', moduleResolution: 'node10' }, 'commonjs'],
    ['a bundler', { module: 'esnext', moduleResolution: 'bundler' }, 'module'],
    ['a program without DOM', { module: 'node16', moduleResolution: 'node16', lib: ['es2022'] }, 'module'],
    ['TypeScript 5.0 without DOM', { module: 'node16', moduleResolution: 'node16', lib: ['es2022'] }, 'module', '50'],
  ] as const) {
    // The project's own TypeScript has left the resolution of Node 10 behind.
    const skip = (compilerOptions.moduleResolution === 'node10' || version !== undefined) && unlessFullSize
    test(`passes the type check as ${name} resolves it`, { skip }, async () => {
      const project = path.join(folder, `types-${name.replaceAll(/\W/g, '-')}`)
      await mkdir(project)
      await symlink(path.join(folder, 'node_modules'), path.join(project, 'node_modules'))
      await cp(path.join(folder, 'types.ts'), path.join(project, 'types.ts'))
      await writeFile(path.join(project, 'package.json'), JSON.stringify({ type }))
      const tsconfig = { compilerOptions: { ...strict, ...compilerOptions }, include: ['types.ts'] }
      await writeFile(path.join(project, 'tsconfig.json'), JSON.stringify(tsconfig))
      await output(process.execPath, [version ? at.typescript50 : at.typescript, '--project', project])
    })
  }

  test('serves Express 4', async () => {
    const project = path.join(folder, 'express4')
    await mkdir(path.join(project, 'node_modules'), { recursive: true })
    for (const name of ['@tidings', 'jose']) {
      await symlink(path.join(folder, 'node_modules', name), path.join(project, 'node_modules', name))
    }
    await symlink(at.express4, path.join(project, 'node_modules/express'))
    await cp(path.join(repository, 'test/receiver/package/express4.mjs'), path.join(project, 'run.mjs'))
    assert.deepEqual(await outcome(at.node20, path.join(project, 'run.mjs')), {
      version: '4',
      statuses: [200, 401, 500, 503, 'alive'],
      late: 1,
    })
  })

  test('tidings/receiver is the same', async () => {
    const home = path.join(folder, 'node_modules/tidings')
    await mkdir(home)
    await cp(path.join(repository, 'bin'), path.join(home, 'bin'), { recursive: true })
    await cp(path.join(repository, 'package.json'), path.join(home, 'package.json'))
    const source = `
      import * as one from 'tidings/receiver'
      import * as other from '@tidings/receiver'
      console.log(Object.keys(other).every(name => one[name] === other[name]) && Object.keys(one).length)`
    const names = Object.keys(await import('../../receiver/index.ts'))
    assert.equal(await outcome(process.execPath, '--input-type=module', '--eval', source), names.length)
  })
})
