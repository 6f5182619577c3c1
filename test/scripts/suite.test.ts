import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, it } from 'node:test'
import { eventually } from '../support/eventually.ts'
import { repository, run } from './checkout.ts'

const FILES = {
  'good.test.ts': `
    import { describe, it } from 'node:test'
    describe('what holds', () => {
      it('holds', () => {})
      it('waits for Monday', { skip: 'it is Sunday' }, () => {})
    })`,
  'bad.test.ts': `
    import assert from 'node:assert/strict'
    import { describe, it } from 'node:test'
    describe('what fails', () => {
      it('says why', () => assert.equal(1 + 1, 3))
      it('leaves others alone', () => {})
    })`,
  'broken.test.ts': `import './missing.ts'`,
  'endless.test.ts': `
    import { it } from 'node:test'
    it('never comes to an end', () => new Promise(resolve => setTimeout(resolve, 600_000)))`,
  'leaving.test.ts': `
    import { spawn } from 'node:child_process'
    import { writeFileSync } from 'node:fs'
    import { it } from 'node:test'
    it('leaves a process behind', () => {
      const left = spawn('sleep', ['600'], { stdio: 'ignore' })
      left.unref()
      writeFileSync(new URL('left', import.meta.url), String(left.pid))
    })`,
}

/** A file that writes down its process, and fails if it finds what another one has changed there. */
const PROCESSES = (text: string) => `
  import assert from 'node:assert/strict'
  import { appendFileSync } from 'node:fs'
  import { it } from 'node:test'
  ${text}
  it('runs', () => {
    assert.equal(process.env.LEFT_BEHIND, undefined)
    process.env.LEFT_BEHIND = 'yes'
    process.chdir('/')
    appendFileSync(new URL('processes', import.meta.url), process.pid + ' ')
  })`
Object.assign(FILES, {
  'one.test.ts': PROCESSES(''),
  'two.test.ts': PROCESSES(''),
  'own.test.ts': PROCESSES('// In a process of its own: it says so.'),
  'killed.test.ts': `
    import { it } from 'node:test'
    it('is killed', () => process.kill(process.pid, 'SIGKILL'))`,
})

const NO_SERVER = [
  '--import',
  `data:text/javascript,import fs from 'node:fs';import { syncBuiltinESMExports } from 'node:module';
   const { accessSync } = fs;
   fs.accessSync = (file, mode) => {
     if (/mariadbd$|mysqld$/.test(file)) throw new Error('none');
     accessSync(file, mode)
   };
   process.getuid = () => 1000; syncBuiltinESMExports()`,
]

const isRunning = (pid: number): boolean => {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}

describe('the run of the tests', () => {
  let folder: string
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-suite-'))
    for (const [name, text] of Object.entries(FILES)) await writeFile(path.join(folder, name), text)
  })
  after(() => rm(folder, { recursive: true }))

  const suite = (names: string[], { options = [] as string[], node = [] as string[], env = {} } = {}) =>
    run(
      process.execPath,
      [...node, 'scripts/suite.js', ...options, ...names.map(name => path.join(folder, `${name}.test.ts`))],
      {
        cwd: repository,
        env: { ...process.env, TIDINGS_TEST_DATABASE_URLS: '', TIDINGS_TEST_ENGINES: 'sqlite', ...env },
      },
    )

  it('ends with the counts in a line of their own', async () => {
    const { code, stdout, stderr } = await suite(['good', 'leaving'])
    assert.equal(code, 0, stdout + stderr)
    assert.deepEqual(stdout.trimEnd().split('\n').slice(-1), ['2 passed, 0 failed, 1 skipped'])
    assert.match(stdout, /^Left out: it is Sunday \(1\)\.$/m)
  })

  it('ends what a file leaves running', async () => {
    await suite(['leaving'])
    const left = Number(await readFile(path.join(folder, 'left'), 'utf8'))
    await eventually(
      'its end',
      () => isRunning(left),
      running => !running,
    )
  })

  it('repeats at the end what failed, with its file, also of a file that could not be loaded', async () => {
    const { code, stdout } = await suite(['good', 'bad', 'broken'])
    assert.equal(code, 1)
    assert.match(stdout, /\n2 passed, 2 failed, 1 skipped\n$/)
    const end = stdout.slice(stdout.indexOf('What failed:'))
    assert.match(end, /✖ what fails › says why \(.*bad\.test\.ts:5\)\n[\s\S]*2 !== 3/)
    assert.match(end, /✖ \S*broken\.test\.ts \(.*\)\n[\s\S]*Cannot find module .*missing\.ts/)
  })

  it('ends a file that does not end by itself, and names the test', async () => {
    const { code, stdout } = await suite(['good', 'endless'], { options: ['--test-timeout=2500'] })
    assert.equal(code, 1)
    assert.match(stdout, /the file did not end within 2\.5 s[\s\S]*Not ended by then: never comes to an end/)
  })

  it('shows the tests of a file that is run alone, those that a pattern names', async () => {
    const { code, stdout } = await suite(['bad'], { options: ['--test-name-pattern', 'leaves others'] })
    assert.equal(code, 0)
    assert.match(stdout, /✔ leaves others alone/)
    assert.match(stdout, /\n1 passed, 0 failed, 0 skipped\n$/)
  })

  it('runs files in one process, which keeps nothing of them, and in its own the one that says so', async () => {
    const { code, stdout } = await suite(['one', 'two', 'own', 'good'], { options: ['--test-concurrency=1'] })
    assert.equal(code, 0, stdout)
    const [one, two, own] = (await readFile(path.join(folder, 'processes'), 'utf8')).split(' ')
    assert.equal(one, two)
    assert.notEqual(own, one)
  })

  it('goes on in another process after a file that has ended its own', async () => {
    const { code, stdout } = await suite(['killed', 'good'], { options: ['--test-concurrency=1'] })
    assert.equal(code, 1)
    assert.match(stdout, /✖ the file ended with SIGKILL \(.*killed\.test\.ts\)\n/)
    assert.match(stdout, /\n1 passed, 1 failed, 1 skipped\n$/)
  })

  it('refuses a file that is not there', async () => {
    const { code, stderr } = await suite(['god'])
    assert.deepEqual([code, /There is no test file .*god\.test\.ts\./.test(stderr)], [1, true])
  })

  it('goes on without a database server, and says at the end what would make the other tests run', async () => {
    const { code, stdout } = await suite(['good'], { node: NO_SERVER, env: { TIDINGS_TEST_ENGINES: '', CI: '' } })
    assert.equal(code, 0)
    assert.match(stdout, /\nTested on SQLite alone: No mariadbd or mysqld was found on this machine\. /)
    assert.match(stdout, /apt-get install mariadb-server-core[\s\S]*\n1 passed, 0 failed, 1 skipped\n$/)
  })

  it('fails without a database server in CI', async () => {
    const { code, stderr } = await suite(['good'], { node: NO_SERVER, env: { TIDINGS_TEST_ENGINES: '', CI: 'true' } })
    assert.equal(code, 1)
    assert.match(stderr, /No mariadbd or mysqld was found on this machine\.[\s\S]*TIDINGS_TEST_ENGINES=sqlite/)
  })
})

for (const table of ['times.json', 'times-at-full-size.json'])
  it(`${table} names test files that exist`, async () => {
    const files = Object.keys(JSON.parse(await readFile(path.join(repository, 'test', table), 'utf8')))
    assert.ok(files.length > 100)
    for (const file of files) await assert.doesNotReject(readFile(path.join(repository, file)), file)
  })
