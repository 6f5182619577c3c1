import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { after, before, describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { pullDeliveries, RetryLater, type TidingsEvent } from '../../receiver/index.ts'
import { type AskServer, startPulling, type TakenDelivery } from '../../receiver/pulling.ts'
import { eventually } from '../support/eventually.ts'
import { puller } from '../support/puller.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { startProject } from './integrator.ts'

const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
/** Lets a program that imports the packed kit run with its source. */
const kitFromSource = `data:text/javascript,${encodeURIComponent(`import { registerHooks } from 'node:module'
  const url = '${new URL('../../receiver/index.ts', import.meta.url)}'
  registerHooks({ resolve: (specifier, context, next) =>
    specifier === '@tidings/receiver' ? { url, shortCircuit: true } : next(specifier, context) })`)}`
const examples = fileURLToPath(new URL('../../examples/pull', import.meta.url))

describe('a client that pulls', () => {
  let server: TestServer
  let credential: { apiKey: string; apiSecret: string }
  let project: string
  before(async () => {
    server = await startTestServer('sqlite')
    credential = await server.token()
    project = await startProject()
  })
  after(() => Promise.all([server?.stop(), rm(project, { recursive: true, force: true })]))

  const emit = async (count = 1) => {
    const { projectId, userId } = await addProject(server.database)
    for (let n = 1; n <= count; n++) {
      const { errors } = await server.graphql(SUBMIT, { projectId, quarter: `20${9 + n}-1`, submitterId: userId })
      assert.equal(errors, undefined)
    }
  }
  const statuses = (webhookId: string): Promise<string[]> =>
    server.database.knex('deliveries').where({ webhook_id: webhookId }).whereNot('event_type', 'ping').pluck('status')

  it('verifies and handles each event once, and is pinged into being with the kit alone', async () => {
    const id = crypto.randomUUID()
    const handled: TidingsEvent[] = []
    const handler = (event: TidingsEvent) => void handled.push(event)
    const pulling = pullDeliveries({ server: server.url, credential, webhookId: id, handler, concurrency: 4 })
    await puller(server, credential as never).upsert({ id, transport: 'pull' })
    await emit(12)
    const all = await eventually(
      'all to be delivered',
      () => statuses(id),
      found => found.length === 12 && found.every(is => is === 'delivered'),
    )
    assert.equal(all.length, handled.length)
    assert.equal(new Set(handled.map(event => event.eventId)).size, 12)
    await pulling.stop()
  })

  it('passes on what the handler asks for: a failure comes again, a pause holds the webhook', async () => {
    const { id } = await puller(server, credential as never).register()
    let calls = 0
    const handler = () => {
      calls += 1
      if (calls === 1) throw new Error('the disk is full')
      if (calls === 2) throw new RetryLater(1)
    }
    const pulling = pullDeliveries({ server: server.url, credential, webhookId: id, handler, onError: () => {} })
    await emit()
    await eventually(
      'the third try to succeed',
      () => statuses(id),
      found => found[0] === 'delivered',
    )
    assert.equal(calls, 3)
    await pulling.stop()
  })

  it('ends with the reason when its token is revoked, and answers what it holds when it is stopped', async () => {
    const other = await server.token()
    const { id } = await puller(server, other as never).register()
    const begun = Promise.withResolvers<void>()
    const going = Promise.withResolvers<void>()
    const handler = async () => {
      begun.resolve()
      await going.promise
    }
    const pulling = pullDeliveries({ server: server.url, credential: other, webhookId: id, handler })
    await emit()
    await begun.promise
    const stopped = pulling.stop()
    going.resolve()
    await stopped
    assert.deepEqual(await statuses(id), ['delivered'])
    const { ended } = pullDeliveries({ server: server.url, credential: other, webhookId: id, handler })
    const rejected = assert.rejects(ended, { code: 'UNAUTHENTICATED' })
    await server.graphql('mutation($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: other.id })
    await rejected
  })

  it('goes on after a refusal that comes late, as to a request that a sleeping machine has held', async t => {
    const refusal = Object.assign(new Error('The signature is too old.'), { code: 'UNAUTHENTICATED' })
    const wakesAt = Date.now() + 3_600_000
    let asked = 0
    const ask: AskServer = async () => {
      asked += 1
      if (asked === 1) t.mock.method(Date, 'now', () => wakesAt)
      throw refusal
    }
    const errors: unknown[] = []
    const answer = async () => undefined
    const pulling = startPulling({
      ask,
      webhookId: 'any',
      concurrency: 1,
      answer,
      onError: error => errors.push(error),
    })
    await assert.rejects(pulling.ended, refusal)
    assert.equal(asked, 2)
    assert.deepEqual(errors, [refusal])
  })

  it('answers for each, whatever one of them answers', async () => {
    const { id } = await puller(server, credential as never).register()
    const long = 'x'.repeat(2 ** 21)
    const answer = async ({ body }: TakenDelivery) => {
      const isFirst = JSON.parse(body).payload.projectReport.quarter === '2010-1'
      return isFirst
        ? { status: 422, headers: { 'x-long': long, 'retry-after': '1' }, body: long }
        : { status: 200, headers: {}, body: '' }
    }
    const ask: AskServer = async (document, variables, signal) => {
      const asked = server.graphql(document, variables, credential as never)
      const left = Promise.withResolvers<never>()
      signal.addEventListener('abort', left.reject)
      const { data, errors } = await Promise.race([asked, left.promise])
      if (errors) throw Object.assign(new Error(errors[0]!.message), errors[0]!.extensions)
      return data
    }
    const pulling = startPulling({
      ask,
      webhookId: id,
      concurrency: 10,
      answer,
      onError: error => assert.fail(String(error)),
    })
    await emit(3)
    const isDone = (found: string[]) => found.length === 3 && !found.includes('pending')
    const found = await eventually('all to be answered', () => statuses(id), isDone)
    assert.deepEqual(found.toSorted(), ['delivered', 'delivered', 'rejected'])
    await pulling.stop()
  })

  for (const [language, program, args, lacks] of [
    ['Node', process.execPath, ['--import', kitFromSource, 'worker.ts'], false],
    ['Python', 'python3', ['worker.py'], spawnSync('python3', ['-c', 'import cryptography']).status !== 0],
    ['Go', 'go', ['run', '.'], spawnSync('go', ['version']).status !== 0],
  ] as const) {
    it(`works in ${language} as the example shows`, { skip: lacks && `${language} is not installed` }, async () => {
      const { id } = await puller(server, credential as never).register()
      const env = {
        ...process.env,
        TIDINGS_URL: server.url,
        TIDINGS_API_KEY: credential.apiKey,
        TIDINGS_API_SECRET: credential.apiSecret,
        WEBHOOK_ID: id,
      }
      // The other kits are imported from where they are; Node's is installed.
      const cwd = language === 'Node' ? path.join(project, 'pull') : examples
      const child: ChildProcess = spawn(program, args, { cwd, env, stdio: 'inherit', detached: true })
      const ended = once(child, 'exit').then(([code]) => assert.fail(`the worker ended with ${code}`))
      try {
        await emit()
        const isDone = (found: string[]) => found[0] === 'delivered'
        const handled = eventually('the worker to handle it', () => statuses(id), isDone, { timeoutMs: 60_000 })
        await Promise.race([handled, ended])
      } finally {
        ended.catch(() => undefined)
        if (child.exitCode === null) process.kill(-child.pid!)
      }
    })
  }
})
