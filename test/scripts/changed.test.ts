import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, it } from 'node:test'
import { isNamedLike, testsOfChange } from '../../scripts/suite/changed.js'

const FILES = {
  'server/a.ts': "export * from './b.ts'",
  'server/b.ts': 'export const b = 1',
  'server/c.ts': 'export const c = 1',
  'bin/run.js': "import '../server/c.ts'",
  'docs/page.md': '# Page',
  'test/near.test.ts': "import '../server/b.ts'",
  'test/far.test.ts': "import '../server/a.ts'",
  'test/page.test.ts': "new URL('../docs/page.md', import.meta.url)",
  'test/pages.test.ts': "globSync('docs/*.md')",
  'test/other.test.ts': '',
  'test/program.test.ts': "spawn('node', ['bin/run.js'])",
}
const tests = Object.keys(FILES).filter(name => name.startsWith('test/'))

describe('the tests of a change', () => {
  let root: string
  before(() => {
    root = mkdtempSync(path.join(tmpdir(), 'tidings-changed-'))
    for (const [name, text] of Object.entries(FILES)) {
      mkdirSync(path.dirname(path.join(root, name)), { recursive: true })
      writeFileSync(path.join(root, name), text)
    }
    git('init', '--quiet')
    git('add', '.')
    git('-c', 'user.name=Ada', '-c', 'user.email=ada@example.com', 'commit', '--quiet', '-m', 'All of it')
  })
  after(() => rmSync(root, { recursive: true }))
  const git = (...args: string[]) => execFileSync('git', args, { cwd: root })
  const afterChange = async (file: string, times = {}) => {
    writeFileSync(path.join(root, file), '// changed')
    const found = await testsOfChange(root, 'HEAD', tests, times)
    git('checkout', '--quiet', '.')
    return found
  }

  it('are those that import it, over however many files, the nearest first', async () => {
    const { changed, files } = await afterChange('server/b.ts')
    assert.deepEqual([changed, files], [['server/b.ts'], ['test/near.test.ts', 'test/far.test.ts']])
  })

  it('are those that read it', async () => {
    assert.deepEqual((await afterChange('docs/page.md')).files, ['test/page.test.ts', 'test/pages.test.ts'])
  })

  it('are those that start a program which imports it', async () => {
    assert.deepEqual((await afterChange('server/c.ts')).files, ['test/program.test.ts'])
  })

  it('are no more than run in a moment, and it is told how many are left', async () => {
    const { files, left } = await afterChange('server/b.ts', { 'test/far.test.ts': [90, 90] })
    assert.deepEqual([files, left], [['test/near.test.ts'], 1])
  })

  it('are those with words of its name first', async () => {
    const more = {
      'test/cli/demo.test.ts': "import '../../server/b.ts'",
      'test/cli/b-list.test.ts': "import '../../server/b.ts'",
    }
    mkdirSync(path.join(root, 'test/cli'))
    for (const [name, text] of Object.entries(more)) writeFileSync(path.join(root, name), text)
    git('add', '.')
    git('-c', 'user.name=Ada', '-c', 'user.email=ada@example.com', 'commit', '--quiet', '-m', 'More')
    writeFileSync(path.join(root, 'server/b.ts'), '// changed')
    const { files } = await testsOfChange(root, 'HEAD', [...Object.keys(more), 'test/near.test.ts'], {})
    git('checkout', '--quiet', '.')
    assert.deepEqual(files, ['test/cli/b-list.test.ts', 'test/cli/demo.test.ts', 'test/near.test.ts'])
  })

  it('are those that changed themselves', async () => {
    assert.deepEqual((await afterChange('test/other.test.ts')).files, ['test/other.test.ts'])
  })

  it('are those of its name first', () => {
    assert.ok(isNamedLike('test/graphql/webhooks.test.ts', 'server/graphql/mutations/webhooks.ts'))
    assert.ok(isNamedLike('test/cli/verify.test.ts', 'cli/verify/verify.ts'))
    assert.ok(!isNamedLike('test/graphql/webhooks.test.ts', 'server/domain/webhooks.ts'))
  })
})
