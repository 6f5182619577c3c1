import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

describeEachEngine('pulling on the command line', engine => {
  let server: TestServer
  let env: Record<string, string>
  const home = temporaryFolder()
  before(async () => {
    server = await startTestServer(engine)
    const { apiKey, apiSecret } = await server.token({ name: 'laptop' })
    env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret }
  })
  after(() => server?.stop())

  const emit = async () => {
    const { projectId, userId } = await addProject(server.database)
    const { errors } = await server.graphql(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId })
    assert.equal(errors, undefined)
  }
  const status = async (id: string) => (await server.database.knex('deliveries').where({ id }).first('status'))!.status

  it('listen --pull registers, verifies what it takes, answers as rehearsed, and disables at the end', async () => {
    const args = ['listen', '--pull', '--count', '2', '--answer', '500,200']
    const child = startTidings(args, { home, env })
    let [out, messages] = ['', '']
    child.stdout.on('data', text => (out += text))
    const registered = new Promise<string>(resolve =>
      child.stderr.on('data', text => {
        messages += text
        const id = /Registered as webhook (\S+)\./.exec(messages)?.[1]
        if (id) resolve(id)
      }),
    )
    const ended = new Promise(resolve => child.once('close', resolve))
    const id = await registered
    await emit()
    assert.equal(await ended, 0, messages)
    const lines = out
      .trim()
      .split('\n')
      .map(line => JSON.parse(line))
    assert.deepEqual(
      lines.map(({ eventType, verified, answered }) => [eventType, verified, answered]),
      [
        ['ping', true, 200],
        ['project_report_quarterly_submitted', true, 500],
        ['project_report_quarterly_submitted', true, 200],
      ],
    )
    assert.equal(await status(lines[2].eventId), 'delivered')
    assert.equal((await server.database.knex('webhooks').where({ id }).first('status'))!.status, 'disabled')
  })

  it('create registers a pulled webhook, take takes from it, and answer answers once', async () => {
    const created = await tidings(['webhooks', 'create', '--transport', 'pull', '--output', 'id'], { home, env })
    assert.equal(created.code, 0, created.stderr)
    const id = created.stdout.trim()
    await emit()
    const taken = await tidings(['deliveries', 'take', id, '--output', 'json'], { home, env })
    assert.equal(taken.code, 0, taken.stderr)
    const [{ deliveryId, attempt, headers }] = JSON.parse(taken.stdout)
    assert.match(headers.authorization, /^Bearer /)
    const answer = ['deliveries', 'answer', deliveryId, '--attempt', String(attempt)]
    assert.equal((await tidings(answer, { home, env })).code, 0)
    assert.equal(await status(deliveryId), 'delivered')
    const other = await tidings([...answer, '--status', '500'], { home, env })
    assert.equal(other.code, 1)
    assert.match(other.stderr, /answered with 200 before/)
  })
})
