import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { engines } from '../support/databases.ts'
import { addProject, type GraphqlAnswer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'
import { startTwoServers, type TwoServers } from './two-servers.ts'

// Each packet of statements waits for the one before it, and each commit for the disk.

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const APPROVE =
  'mutation ($id: UUID!, $approverId: UUID!) { approveProjectReport(id: $id, approverId: $approverId) { id } }'

const done = (answer: GraphqlAnswer) => {
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors))
  return answer.data
}

const AUTHENTICATED_BY = ['SELECT access_tokens']
const DECIDED_ON = ['SELECT projects', 'SELECT users', 'SELECT project_reports', 'SELECT matching webhooks']
const IN_GROUP = ['BEGIN', 'SELECT audit_log', 'SELECT access_tokens', ...DECIDED_ON]
const EVENT = ['INSERT events', 'INSERT deliveries', 'INSERT delivery_queue']
const COMMIT = ['COMMIT']

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
      const packets: string[][] = []
      const end = two.proxy.watch((text, isFirst) => {
        // What a process says of itself now and then, its look for signing keys, and what a new connection begins with.
        if (/\b(processes|signing_keys)\b|^SET SESSION (innodb_|TRANSACTION |sql_mode)/.test(text)) return
        if (isFirst) packets.push([text])
        else packets.at(-1)!.push(text)
      })
      const data = done(await mutate())
      end()
      const named = (text: string): string => {
        if (text.startsWith('SELECT p.id AS project_id')) return 'SELECT matching webhooks'
        const table = /INSERT INTO (\w+)|^UPDATE (\w+)|FROM (access_tokens) t\b|FROM (?!access)(\w+)/
          .exec(text)
          ?.slice(1)
        return [/^\w+/.exec(text)![0], ...(table ?? [])].filter(part => part !== undefined).join(' ')
      }
      return { data, packets: packets.map(packet => packet.map(named)) }
    }
    const submit = (quarter: string) =>
      statementsOf(() => two.byStopped(SUBMIT, { projectId: project.projectId, quarter, submitterId: project.userId }))

    it('go in five packets where it submits a report', async () => {
      const { packets } = await submit('2026-1')
      const written = ['INSERT audit_log', 'INSERT project_reports', ...EVENT]
      assert.deepEqual(packets, [AUTHENTICATED_BY, IN_GROUP, ['SELECT webhooks'], written, COMMIT])
    })

    it('are as many where the report was open before, and each waits for the last where it is approved', async () => {
      const now = Date.now()
      const row = { quarter: '2026-2', due_date: '2026-07-30', status: 'open', created_at: now, updated_at: now }
      await two.stopped.database
        .knex('project_reports')
        .insert({ id: project.userId, project_id: project.projectId, ...row })
      const { packets, data } = await submit('2026-2')
      const locked = ['SELECT project_reports', 'SELECT webhooks']
      const written = ['INSERT audit_log', 'UPDATE project_reports', ...EVENT]
      assert.deepEqual(packets, [AUTHENTICATED_BY, IN_GROUP, locked, written, COMMIT])
      const { id } = data.submitProjectReport
      const approved = await statementsOf(() => two.byStopped(APPROVE, { id, approverId: project.userId }))
      const alone = ['BEGIN', 'INSERT audit_log', 'SELECT access_tokens', 'UPDATE project_reports']
      const each = [...AUTHENTICATED_BY, ...alone, 'SELECT matching webhooks', 'SELECT webhooks', ...EVENT, ...COMMIT]
      assert.deepEqual(
        approved.packets,
        each.map(one => [one]),
      )
    })
  })
}
