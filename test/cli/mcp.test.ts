import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { Peer } from '../../cli/mcp/peer.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'
import { startTidings, temporaryFolder } from './tidings.ts'

const home = temporaryFolder()

describe('tidings mcp', () => {
  let server: TestServer
  let receiver: Receiver
  let reader: Credentials & { id: string }
  let keeper: Credentials & { id: string }
  let webhookId: string

  before(async () => {
    receiver = await startReceiver()
    server = await startTestServer('sqlite')
    reader = await server.token({ permissions: ['read'] })
    keeper = await server.token({ permissions: ['admin'] })
    webhookId = await addWebhook(server.database.knex, { accessTokenId: keeper.id, url: receiver.url })
    for (let index = 0; index < 60; index++)
      await addProject(server.database, { organisation: `Organisation ${index}` })
  })
  after(() => Promise.all([server.stop(), receiver.close(), ...ended.map(end => end())]))

  const ended: (() => void)[] = []

  /** A client of the protocol. @param answer what the person says if asked */
  const connect = async (as: Credentials, flags: string[] = [], answer?: boolean) => {
    const child = startTidings(['mcp', ...flags], {
      home,
      env: { TIDINGS_URL: server.url, TIDINGS_API_KEY: as.apiKey, TIDINGS_API_SECRET: as.apiSecret },
    })
    ended.push(() => child.kill())
    const asked: string[] = []
    const peer = new Peer(child.stdout, child.stdin)
    void peer.serve({
      'elicitation/create': ({ message }) => {
        asked.push(String(message))
        return { action: 'accept', content: { confirm: answer } }
      },
    })
    const capabilities = answer === undefined ? {} : { elicitation: {} }
    const clientInfo = { name: 'test', version: '1' }
    const begun = await peer.ask<{ protocolVersion: string }>('initialize', {
      ...{ protocolVersion: '2025-06-18', capabilities, clientInfo },
    })
    assert.equal(begun.protocolVersion, '2025-06-18')
    type Called = { content: { text: string }[]; isError?: boolean }
    const call = async (name: string, args: Record<string, unknown> = {}) => {
      const { content, isError } = await peer.ask<Called>('tools/call', { name, arguments: args })
      return { text: content[0]!.text, isError: isError === true }
    }
    type Listed = { tools: { name: string; annotations: { readOnlyHint: boolean } }[] }
    const list = async () => (await peer.ask<Listed>('tools/list', {})).tools
    return { list, call, asked }
  }

  it('has the tools that read, and none that changes, for a token that may read', async () => {
    const { list, call } = await connect(reader)
    const tools = await list()
    const names = tools.map(({ name }) => name)
    for (const name of ['why', 'stats', 'webhooks_list', 'deliveries_show', 'events_list', 'query']) {
      assert.ok(names.includes(name), name)
    }
    assert.ok(tools.every(({ annotations }) => annotations.readOnlyHint === true))
    assert.deepEqual(
      names.filter(name => /create|update|disable|delete|redeliver|recover|token|sign|server|graphql|audit/.test(name)),
      [],
    )
    for (const name of ['webhooks_disable', 'graphql', 'tokens_create', 'server_seed']) {
      assert.deepEqual(await call(name, { id: webhookId }), { text: `There is no tool ${name}.`, isError: true })
    }
    const { text } = await call('webhooks_list')
    assert.equal(JSON.parse(text)[0].id, webhookId)
    const refused = await call('webhooks_list', { '--yes': 'x' })
    assert.equal(refused.isError, true)
    assert.match((await call('query', { resource: 'accessTokens' })).text, /resource is one of/)
    assert.equal((await call('webhooks_show', { id: '--help' })).isError, true)
  })

  it('caps lists, and leaves payloads out unless asked for', async () => {
    const { call } = await connect(reader)
    const [rows, told] = (await call('organisations_list')).text.split('\n')
    assert.equal(JSON.parse(rows!).length, 50)
    assert.match(told!, /The first 50 rows/)
    await server.graphql(`mutation { pingWebhook(id: "${webhookId}") { id } }`, {}, keeper)
    const events = async (more: object) => JSON.parse((await call('query', { resource: 'events', ...more })).text)
    assert.equal('payload' in (await events({}))[0], false)
    assert.deepEqual((await events({ payloads: true, fields: 'id,payload' }))[0].payload, {})
  })

  it('changes nothing with a token that may only read, even where changes are allowed', async () => {
    const { call } = await connect(reader, ['--allow-changes'], true)
    const { isError, text } = await call('webhooks_disable', { ids: [webhookId] })
    assert.equal(isError, true)
    assert.match(text, /FORBIDDEN|permission/i)
  })

  it('asks the person before a change that the command line asks about', async () => {
    const status = async () =>
      (await server.database.knex('webhooks').where({ id: webhookId }).first('status'))!.status as string
    for (const [answer, expected] of [
      [undefined, 'active'],
      [false, 'active'],
      [true, 'disabled'],
    ] as const) {
      const { call, asked } = await connect(keeper, ['--allow-changes'], answer)
      const { isError } = await call('webhooks_disable', { ids: [webhookId] })
      assert.equal(isError, expected === 'active')
      assert.equal(asked.length, answer === undefined ? 0 : 1)
      assert.equal(await status(), expected)
    }
  })
})
