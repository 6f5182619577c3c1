import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { unlessFullSize } from '../support/size.ts'
import { OLD_NODE, repository, run } from './checkout.ts'
import { startRegistry } from './registry.ts'

/** As the real one: the executable is not in the package, its script puts it there. */
const fakeNode = {
  name: 'node',
  version: '24.0.0',
  files: { 'place.cjs': "require('fs').mkdirSync('bin'); require('fs').symlinkSync(process.execPath, 'bin/node')" },
  manifest: { bin: { node: 'bin/node' }, scripts: { preinstall: 'node place.cjs' } },
}

describe('installing the dependencies', { skip: unlessFullSize }, () => {
  let registryFolder: string
  let registry: Awaited<ReturnType<typeof startRegistry>>
  let folder: string
  let env: NodeJS.ProcessEnv

  before(async () => {
    registryFolder = await mkdtemp(path.join(tmpdir(), 'tidings-registry-'))
    const versions = ['1.0.0', '1.0.1'].map(version => ({ name: 'news', version }))
    registry = await startRegistry(registryFolder, [...versions, { name: 'tool', version: '1.0.0' }, fakeNode])
  })
  after(async () => {
    await registry.stop()
    await rm(registryFolder, { recursive: true })
  })

  beforeEach(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-install-'))
    await cp(path.join(repository, 'scripts'), path.join(folder, 'scripts'), { recursive: true })
    await want('1.0.0')
    env = { ...process.env, npm_config_registry: registry.address, npm_config_cache: path.join(folder, 'cache') }
    registry.fetched.length = 0
  })
  afterEach(() => rm(folder, { recursive: true, maxRetries: 5 }))

  const want = async (news: string) => {
    const root = {
      name: 'wanting',
      version: '1.0.0',
      type: 'module',
      dependencies: { news },
      devDependencies: { node: '24.0.0', tool: '1.0.0' },
      allowScripts: { node: true },
    }
    const packages = {
      '': { ...root, type: undefined, allowScripts: undefined },
      'node_modules/news': { version: news },
      'node_modules/node': { version: '24.0.0', dev: true, hasInstallScript: true, bin: { node: 'bin/node' } },
      'node_modules/tool': { version: '1.0.0', dev: true },
    }
    await writeFile(path.join(folder, 'package.json'), JSON.stringify(root))
    await writeFile(
      path.join(folder, 'package-lock.json'),
      JSON.stringify({ name: 'wanting', version: '1.0.0', lockfileVersion: 3, requires: true, packages }),
    )
  }

  const install = (flags: string[] = [], more: NodeJS.ProcessEnv = {}, options = '') => {
    const script = `import { ensureInstalled } from './scripts/install.js'
      console.log(await ensureInstalled(${options}))`
    const args = [...flags, '--input-type=module', '--eval', script]
    return run(process.execPath, args, { cwd: folder, env: { ...env, ...more } })
  }
  const installed = (name: string) =>
    JSON.parse(readFileSync(path.join(folder, 'node_modules', name, 'package.json'), 'utf8')).version

  test('brings what the lock file names, and says so on stderr alone', async () => {
    const { stdout, stderr, code } = await install()
    assert.deepEqual({ stdout, code }, { stdout: `${process.execPath}\n`, code: 0 })
    assert.match(stderr, /^tidings: Installing the dependencies .*\ntidings: Installed in [\d.]+ s\.\n$/)
    assert.equal(installed('news'), '1.0.0')
  })

  test('answers with the Node from npm where the one running is too old', async () => {
    const { stdout } = await install(OLD_NODE)
    assert.equal(stdout, `${path.join(folder, 'node_modules/node/bin/node')}\n`)
  })

  test('puts that Node in its place where npm is told to run no scripts', async () => {
    const { stdout } = await install(OLD_NODE, { npm_config_ignore_scripts: 'true' })
    assert.equal((await run(stdout.trim(), ['--version'])).stdout, `${process.version}\n`)
  })

  test('does nothing when all is there', async () => {
    await install()
    assert.deepEqual(await install(), { stdout: `${process.execPath}\n`, stderr: '', code: 0, signal: null })
  })

  test('installs again when the lock file has changed', async () => {
    await install()
    await want('1.0.1')
    await install()
    assert.equal(installed('news'), '1.0.1')
  })

  test('brings the development dependencies in a production environment too', async () => {
    await install([], { NODE_ENV: 'production', npm_config_omit: 'dev' })
    assert.equal(installed('tool'), '1.0.0')
  })

  test('leaves an installation for production alone when the program only wants to run', {
    skip: unlessFullSize,
  }, async () => {
    await run('npm', ['ci', '--omit=dev', '--ignore-scripts'], { cwd: folder, env })
    const { stderr } = await install([], {}, '{ development: false }')
    assert.equal(stderr, '')
  })

  test('installs once when two ask at the same time', async () => {
    const both = await Promise.all([install(), install()])
    assert.deepEqual(
      both.map(({ code }) => code),
      [0, 0],
    )
    assert.equal(registry.fetched.filter(url => url === '/news-1.0.0.tgz').length, 1)
  })

  test('is not held up by an installation that was killed', async () => {
    const killed = run(process.execPath, ['scripts/install.js'], {
      cwd: folder,
      env,
      timeout: 300,
      killSignal: 'SIGKILL',
    })
    assert.equal((await killed).signal, 'SIGKILL')
    assert.equal((await install()).code, 0)
    assert.equal(installed('news'), '1.0.0')
  })

  test('clears away what an installation that was killed has left', async () => {
    await mkdir(path.join(folder, '.node_modules-staging-1'))
    await install()
    const left = (await readdir(folder)).filter(name => name.startsWith('.'))
    assert.deepEqual(left, [])
  })

  test('says what to do when there is no network', async () => {
    const { code, stderr } = await run(process.execPath, ['scripts/install.js'], {
      cwd: folder,
      env: { ...env, npm_config_registry: 'http://127.0.0.1:1' },
    })
    assert.equal(code, 1)
    assert.match(stderr, /the npm registry was not reached.*Connect to the network/s)
  })

  test('goes on with what is there when there is no network', async () => {
    await install()
    await want('1.0.1')
    const { code, stderr } = await install([], { npm_config_registry: 'http://127.0.0.1:1' })
    assert.equal(code, 0)
    assert.match(stderr, /Going on with what node_modules holds/)
    assert.equal(installed('news'), '1.0.0')
  })

  test('says so when there is no npm', async () => {
    const empty = path.join(folder, 'empty')
    await mkdir(empty)
    await cp(process.execPath, path.join(empty, 'node'))
    const { code, stderr } = await run(path.join(empty, 'node'), ['scripts/install.js'], {
      cwd: folder,
      env: { ...env, PATH: empty },
    })
    assert.equal(code, 1)
    assert.match(stderr, /there is no npm on the path\. Install Node 24/)
  })
})
