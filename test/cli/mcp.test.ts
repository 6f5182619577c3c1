import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { Client } from '@modelcontextprotocol/client'
import { getDefaultEnvironment, StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { CHANGES, READS } from '../../cli/mcp/tools.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { atFullSize, isAtFullSize } from '../support/size.ts'
import { addWebhook } from '../support/webhooks.ts'
import { PROGRAM, temporaryFolder, tidings } from './tidings.ts'

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

  const ended: (() => Promise<void>)[] = []

  /**
   * The SDK's own client, of the newest revision of the protocol or the one before.
   *
   * @param answer what the person says if asked; undefined if there is no way to ask
   */
  const connect = async (
    as: Credentials,
    {
      flags = [],
      answer,
      mode = 'auto',
    }: { flags?: string[]; answer?: boolean | undefined; mode?: 'auto' | 'legacy' } = {},
  ) => {
    const capabilities = answer === undefined ? {} : { elicitation: {} }
    const client = new Client({ name: 'test', version: '1' }, { capabilities, versionNegotiation: { mode } })
    const asked: string[] = []
    if (answer !== undefined)
      client.setRequestHandler('elicitation/create', ({ params }) => {
        asked.push(params.message)
        return { action: 'accept', content: { confirm: answer } }
      })
    const env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: as.apiKey, TIDINGS_API_SECRET: as.apiSecret }
    const transport = new StdioClientTransport({
      command: process.execPath,
      args: [PROGRAM, 'mcp', ...flags],
      env: { ...getDefaultEnvironment(), XDG_CONFIG_HOME: home, ...env },
    })
    await client.connect(transport)
    ended.push(() => client.close())
    const call = async (name: string, args: Record<string, unknown> = {}) => {
      const { content, isError } = await client.callTool({ name, arguments: args })
      const [told] = content
      return { text: told?.type === 'text' ? told.text : '', isError: isError === true }
    }
    return { list: async () => (await client.listTools()).tools, call, asked, client }
  }

  it('has the tools that read, and none that changes, for a token that may read', async () => {
    const { list, call, client } = await connect(reader)
    const tools = await list()
    assert.deepEqual(tools.map(({ name }) => name).toSorted(), READS.map(name => name.replaceAll(' ', '_')).toSorted())
    assert.ok(tools.every(({ annotations }) => annotations?.readOnlyHint === true))
    for (const name of ['webhooks_disable', 'graphql', 'tokens_create', 'server_seed']) {
      await assert.rejects(client.callTool({ name, arguments: { ids: [webhookId] } }), /not found/)
    }
    const { text } = await call('webhooks_list')
    assert.equal(JSON.parse(text)[0].id, webhookId)
    for (const [tool, args] of [
      ['webhooks_list', { '--yes': 'x' }],
      ['query', { resource: 'accessTokens' }],
      ['webhooks_show', { id: '--help' }],
      ['webhooks_show', {}],
      ['query', { resource: 'events', selector: '@/etc/passwd' }],
    ] as const) {
      assert.equal((await call(tool, args)).isError, true, tool)
    }
  })

  it('has every command as a tool, or a reason why not', async () => {
    const { stdout } = await tidings(['help', '--json'], { home })
    type Tree = { command: string; commands: Tree[] }
    const leavesOf = (each: Tree): string[] =>
      each.commands.length === 0 ? [each.command.replace('tidings ', '')] : each.commands.flatMap(leavesOf)
    const all = leavesOf(JSON.parse(stdout)).filter(name => !NO_TOOLS.some(({ of }) => of.test(name)))
    assert.deepEqual(all.toSorted(), [...READS, ...CHANGES].toSorted())
  })

  it('caps lists, and leaves payloads out unless asked for', async () => {
    const { call } = await connect(reader)
    const [rows, told] = (await call('organisations_list')).text.split('\n')
    assert.equal(JSON.parse(rows!).length, 50)
    assert.match(told!, /The first 50 rows/)
    const { data } = await server.graphql(`mutation { pingWebhook(id: "${webhookId}") { id } }`, {}, keeper)
    const events = async (more: object) => JSON.parse((await call('query', { resource: 'events', ...more })).text)
    assert.equal('payload' in (await events({}))[0], false)
    assert.deepEqual((await events({ payloads: true, fields: 'id,payload' }))[0].payload, {})
    const exported = async (more: object) =>
      JSON.parse((await call('deliveries_export', { id: data.pingWebhook.id, ...more })).text)
    assert.equal('body' in (await exported({})).request, false)
    assert.match((await exported({ payloads: true })).request.body, /"payload":/)
  })

  it('tells what a command found that is not in order', async () => {
    const { call } = await connect(reader)
    const { isError, text } = await call('doctor', { webhook: webhookId })
    assert.match(text, /"status":"ok"/)
    assert.equal(isError, /"status":"problem"/.test(text))
  })

  it('changes nothing with a token that may only read, even where changes are allowed', async () => {
    const { call } = await connect(reader, { flags: ['--allow-changes'], answer: true })
    for (const [tool, args] of [
      ['webhooks_disable', { ids: [webhookId] }],
      ['webhooks_create', { url: receiver.url }],
      ['organisations_upsert', { name: 'Another' }],
      ['trigger', { type: 'ping', webhook: webhookId }],
    ] as const) {
      const { isError, text } = await call(tool, args)
      assert.equal(isError, true)
      assert.match(text, /FORBIDDEN|permission/i)
    }
  })

  it('shows an assistant nothing that its token does not see, and leaves everything as it was', async () => {
    const { database } = server
    const [own, hidden] = [
      await addProject(database, { organisation: 'Seen', project: 'Seen dam' }),
      await addProject(database, { organisation: 'Hidden', project: 'Hidden dam' }),
    ]
    const limited = await server.token({ permissions: ['read'], organisationIds: [own.organisationId] })
    const hiddenHook = await addWebhook(database.knex, {
      ...{ accessTokenId: keeper.id, url: `${receiver.url}/hidden` },
      organisationIds: [hidden.organisationId],
    })
    const submit = `mutation { submitProjectReport(projectId: "${hidden.projectId}", quarter: "2026-3",
      submitterId: "${hidden.userId}") { id } }`
    assert.equal((await server.graphql(submit, {}, keeper)).errors, undefined)
    const secret = { events: '', deliveries: '', reports: '' }
    for (const [name, table] of [
      ['events', 'events'],
      ['deliveries', 'deliveries'],
      ['reports', 'project_reports'],
    ] as const) {
      secret[name] = (await database.knex(table).orderBy('created_at', 'desc').first('id')).id
    }
    const everything = async () =>
      JSON.stringify(
        await Promise.all(['webhooks', 'organisations', 'access_tokens', 'audit_log'].map(name => database.knex(name))),
      ).replaceAll(/"last_used_at":(?:\d+|null)/g, '')
    const before = await everything()
    const { call, list, client } = await connect(limited)
    const about = [hiddenHook, hidden.organisationId, secret.events, secret.deliveries]
    const tried: string[] = []
    for (const { name, inputSchema } of await list()) {
      const { properties = {}, required = [] } = inputSchema as {
        properties?: Record<string, object>
        required?: string[]
      }
      const given = required.length > 0 ? required : Object.keys(properties).filter(each => each === 'webhook')
      const resources = ['webhooks', 'deliveries', 'events', 'projects', 'organisations', 'projectReports']
      const values = name === 'query' ? resources : given.length > 0 ? about : ['']
      // By day each tool is asked about one of them.
      for (const value of isAtFullSize || name === 'query' ? values : [values[tried.length % values.length]!]) {
        const args = Object.fromEntries(given.map(each => [each, value]))
        const { text } = await call(name, args)
        tried.push(name)
        // What was asked for may be repeated; nothing else of it is told.
        for (const mark of ['Hidden', hidden.projectId, ...about]) {
          assert.ok(mark === value || !text.includes(mark), `${name} ${JSON.stringify(args)} tells ${mark}: ${text}`)
        }
      }
    }
    assert.deepEqual(new Set(tried).size, READS.length)
    for (const resource of ['accessTokens', 'auditLog']) assert.ok((await call('query', { resource })).isError)
    for (const name of CHANGES) {
      await assert.rejects(client.callTool({ name: name.replaceAll(' ', '_'), arguments: {} }), /not found/)
    }
    assert.equal(await everything(), before)
  })

  for (const mode of atFullSize(['auto', 'legacy'] as const, ['auto'] as const)) {
    it(`asks the person before a change that the command line asks about (${mode})`, async () => {
      const { knex } = server.database
      const status = async () => (await knex('webhooks').where({ id: webhookId }).first('status'))!.status as string
      await knex('webhooks').where({ id: webhookId }).update({ status: 'active' })
      for (const [answer, expected] of [
        [undefined, 'active'],
        [false, 'active'],
        [true, 'disabled'],
      ] as const) {
        const { call, asked } = await connect(keeper, { flags: ['--allow-changes'], answer, mode })
        const { isError } = await call('webhooks_disable', { ids: [webhookId] }).catch(() => ({ isError: true }))
        assert.equal(isError, expected === 'active')
        assert.equal(asked.length, answer === undefined ? 0 : 1)
        assert.equal(await status(), expected)
      }
    })
  }
})

/** The commands that are no tools. */
const NO_TOOLS = [
  {
    of: /^(server|tokens|audit|profiles|login|config|sign|webhooks rotate-secret)( |$)/,
    why: 'for admins, or of secrets',
  },
  { of: /^(dashboard|explore|listen|rehearse|proxy|demo|deliveries watch)$/, why: 'last until they are ended' },
  { of: /^(mcp|completion|graphql|verify)$/, why: 'for people and shells, or of files of this machine' },
  { of: /^deliveries (take|answer)$/, why: 'the work of a receiver' },
]
