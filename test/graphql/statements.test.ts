import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { engines } from '../support/databases.ts'
import { addProject, type GraphqlAnswer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'
import { startTwoServers, type TwoServers } from './two-servers.ts'

// Each line of statements waits for the one before it, and each commit for the disk.

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const APPROVE =
  'mutation ($id: UUID!, $approverId: UUID!) { approveProjectReport(id: $id, approverId: $approverId) { id } }'

const done = (answer: GraphqlAnswer) => {
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors))
  return answer.data
}

const AROUND = ['SELECT access_tokens', 'BEGIN', 'INSERT audit_log', 'SELECT access_tokens']
const EVENT = ['INSERT events', 'INSERT deliveries', 'INSERT delivery_queue', 'COMMIT']
const MATCH = ['SELECT matching webhooks', 'SELECT webhooks']
const DECIDED_ON = ['SELECT projects', 'SELECT users', 'SELECT project_reports', MATCH[0]!]

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`the statements of a mutation with one webhook (${engine})`, () => {
    let two: TwoServers
    let project: Awaited<ReturnType<typeof addProject>>
    before(async () => {
      two = await startTwoServers(engine)
      const { database } = two.stopped
      project = await addProject(database)
      await addWebhook(database.knex, { accessTokenId: two.admin.id, projectIds: [project.projectId] })
      // What a token's first request of a minute writes is no mutation's.
      await database.knex('access_tokens').update({ last_used_at: Date.now() + 3_600_000 })
    })
    after(() => two?.stop())

    const statementsOf = async (mutate: () => Promise<GraphqlAnswer>) => {
      const seen: string[] = []
      const end = two.proxy.watch(text => {
        // What a process says of itself now and then, and its look for signing keys.
        if (!/\b(processes|signing_keys)\b/.test(text)) seen.push(text)
      })
      const data = done(await mutate())
      end()
      const named = seen.map(text => {
        if (text.startsWith('SELECT p.id AS project_id')) return 'SELECT matching webhooks'
        const table =
          /INSERT INTO (\w+)|^UPDATE (\w+)|FROM (access_tokens) t\b|FROM (projects|users|project_reports|webhooks)\b/
            .exec(text)
            ?.slice(1)
        return [/^\w+/.exec(text)![0], ...(table ?? [])].filter(part => part !== undefined).join(' ')
      })
      return { data, statements: named }
    }
    const submit = (quarter: string) =>
      statementsOf(() => two.byStopped(SUBMIT, { projectId: project.projectId, quarter, submitterId: project.userId }))

    it('wait for one another five times where it submits a report, beside BEGIN and COMMIT', async () => {
      const { statements } = await submit('2026-1')
      assert.deepEqual(statements, [...AROUND, ...DECIDED_ON, 'SELECT webhooks', 'INSERT project_reports', ...EVENT])
    })

    it('are as many where the report has been opened before, and where it approves it', async () => {
      const now = Date.now()
      const row = { quarter: '2026-2', due_date: '2026-07-30', status: 'open', created_at: now, updated_at: now }
      await two.stopped.database
        .knex('project_reports')
        .insert({ id: project.userId, project_id: project.projectId, ...row })
      const { statements, data } = await submit('2026-2')
      const open = ['SELECT project_reports', 'SELECT webhooks', 'UPDATE project_reports']
      assert.deepEqual(statements, [...AROUND, ...DECIDED_ON, ...open, ...EVENT])
      const { id } = data.submitProjectReport
      const approved = await statementsOf(() => two.byStopped(APPROVE, { id, approverId: project.userId }))
      assert.deepEqual(approved.statements, [...AROUND, 'UPDATE project_reports', ...MATCH, ...EVENT])
    })
  })
}
