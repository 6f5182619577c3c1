import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { Client } from '@modelcontextprotocol/client'
import { getDefaultEnvironment, StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { startTestServer } from '../support/server.ts'
import { unlessFullSize } from '../support/size.ts'
import { repository, run } from './checkout.ts'

// What the pages say to install while no release is published: both packages, packed in a clone.

describe('the packed files', { skip: unlessFullSize }, () => {
  let folder: string
  let files: string[]
  const quiet = ['--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error']
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-packed-'))
    const options = ['--workspaces', '--include-workspace-root', '--loglevel=error', '--pack-destination', folder]
    const { code, stderr } = await run('npm', ['pack', ...options], { cwd: repository })
    assert.equal(code, 0, stderr)
    files = (await readdir(folder)).map(name => path.join(folder, name))
  })
  after(() => rm(folder, { recursive: true, force: true }))

  const install = async (name: string, ...args: string[]): Promise<string> => {
    const prefix = path.join(folder, name)
    await mkdir(prefix)
    const { code, stderr } = await run('npm', ['install', ...quiet, '--prefix', prefix, ...args], { cwd: prefix })
    assert.equal(code, 0, stderr)
    return prefix
  }
  const version = async (program: string) => (await run(program, ['help', 'exit-codes'])).stdout

  /** Both, in an empty folder. */
  let at: string
  before(async () => {
    at = await install('empty', ...files)
  })

  test('are installed together in an empty folder, and the program and the receiver work there', async () => {
    assert.match(await version(path.join(at, 'node_modules/.bin/tidings')), /verification failed/)
    const script = `const { koaReceiver } = await import('@tidings/receiver'); console.log(typeof koaReceiver)`
    const { stdout, stderr } = await run(process.execPath, ['--input-type=module', '-e', script], { cwd: at })
    assert.equal(stdout, 'function\n', stderr)
  })

  test('give an assistant the tools of `tidings mcp`', async t => {
    const server = await startTestServer('sqlite')
    t.after(server.stop)
    const { apiKey, apiSecret } = await server.token({ permissions: ['read'] })
    const client = new Client({ name: 'test', version: '1' })
    const transport = new StdioClientTransport({
      command: path.join(at, 'node_modules/.bin/tidings'),
      args: ['mcp'],
      env: {
        ...getDefaultEnvironment(),
        XDG_CONFIG_HOME: at,
        TIDINGS_URL: server.url,
        TIDINGS_API_KEY: apiKey,
        TIDINGS_API_SECRET: apiSecret,
      },
    })
    t.after(() => client.close())
    await client.connect(transport)
    const { content, isError } = await client.callTool({ name: 'organisations_list', arguments: {} })
    assert.ok(!isError, JSON.stringify(content))
  })

  test('are installed for the whole machine, from files alone', async () => {
    const at = await install('global', '--global', ...files)
    assert.match(await version(path.join(at, 'bin/tidings')), /verification failed/)
  })

  test('of the receiver are enough for a receiver', async () => {
    const at = await install('receiver', files.find(name => /tidings-receiver-/.test(name))!)
    const script = `console.log(typeof (await import('@tidings/receiver')).koaReceiver)`
    const { stdout, stderr } = await run(process.execPath, ['--input-type=module', '-e', script], { cwd: at })
    assert.equal(stdout, 'function\n', stderr)
  })
})
