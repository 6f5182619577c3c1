import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { BUDGET } from '../../server/graphql/budget.ts'
import { describeEachEngine } from '../support/databases.ts'
import { cpuMsOf } from '../support/effort.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const ENV = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' }
const times = { created_at: 1, updated_at: 1 }
const PROJECTS = 300
const REPORTS = 10_000
const SCALARS =
  'id projectId quarter dueDate status submitterId submittedAt approverId approvedDate overdueAt __typename'

describeEachEngine('a request has one budget', engine => {
  let server: TestServer
  let projectIds: string[]
  before(async () => {
    server = await startTestServer(engine, { env: ENV })
    const { knex } = server.database
    const { organisationId, userId } = await addProject(server.database)
    const projects = Array.from({ length: PROJECTS }, (_, n) => ({
      id: randomUUID(),
      organisation_id: organisationId,
      name: `${'é'.repeat(190)} ${n}`,
      ...times,
    }))
    projectIds = projects.map(({ id }) => id)
    await knex.batchInsert('projects', projects, 100)
    const reports = Array.from({ length: REPORTS }, (_, n) => ({
      id: randomUUID(),
      project_id: projectIds[n % PROJECTS]!,
      quarter: `${2000 + Math.floor(n / PROJECTS / 4)}-${(Math.floor(n / PROJECTS) % 4) + 1}`,
      due_date: '2026-10-30',
      status: 'open',
      submitter_id: userId,
      submitted_at: 1_700_000_000_000,
      ...times,
    }))
    await knex.batchInsert('project_reports', reports, 100)
  })
  after(() => server.stop())

  const refused = async (document: string, variables: object = {}) => {
    const { data, errors } = await server.graphql(document, variables)
    assert.ok(data == null, 'something was answered beside the error')
    assert.equal(errors?.length, 1)
    const { code, limit, budget } = errors![0]!.extensions
    return { code, limit, budget, message: errors![0]!.message }
  }

  it('that lets a list of 10,000 rows through with all their fields', async () => {
    const cpuMs = await cpuMsOf(async () => {
      const { data, errors } = await server.graphql(`{ projectReports { ${SCALARS} project { name } } }`)
      assert.equal(errors, undefined)
      assert.equal(data.projectReports.length, REPORTS)
    })
    assert.ok(cpuMs < BUDGET.timeMs, `${cpuMs} ms`)
  })

  it('of time', async () => {
    const { databaseUrl: url, masterKeys } = server.config
    const env = { ...ENV, TIDINGS_MASTER_KEY: masterKeys[0]!.toString('base64') }
    const hurried = await startTestServer(engine, { env, url, readerTerms: { timeMs: 1 } })
    try {
      const { errors } = await hurried.graphql(`{ projectReports { ${SCALARS} } }`)
      assert.deepEqual(
        errors!.map(({ message, extensions }) => [message.split('.')[0], extensions.budget]),
        [['The request takes more than 1 ms', 'timeMs']],
      )
    } finally {
      await hurried.stop()
    }
  })

  it('in which a row counts once for every place that it is answered in', async () => {
    const told = await refused('{ projects { organisation { projects { organisation { projects { id } } } } } }')
    assert.deepEqual([told.code, told.budget, told.limit], ['RESULT_TOO_LARGE', 'values', BUDGET.values])
    assert.match(told.message, /answers more than 1,400,000 fields.*smaller limits/)
  })

  it('that all lists and aliases share', async () => {
    const lists = Array.from({ length: 30 }, (_, n) => `a${n}: projectReports { id }`)
    const told = await refused(`{ ${lists.join(' ')} }`)
    assert.deepEqual([told.code, told.budget, told.limit], ['RESULT_TOO_LARGE', 'rows', BUDGET.rows])
  })

  it('that is looked at before anything runs where limits tell what comes', async () => {
    const lists = Array.from({ length: 30 }, (_, n) => `a${n}: projectReports(query: {limit: 10000}) { id }`)
    const told = await refused(`{ ${lists.join(' ')} }`)
    assert.equal(told.code, 'QUERY_TOO_COMPLEX')
    assert.match(told.message, /300,000 rows by its limits; at most 50,000 are allowed/)
  })

  it('in which long names of fields count as often as they are answered', async () => {
    const told = await refused(`{ projectReports { ${'a'.repeat(10_000)}: id } }`)
    assert.deepEqual([told.code, told.budget, told.limit], ['RESULT_TOO_LARGE', 'bytes', BUDGET.bytes])
  })

  it('in which bytes count, not characters', async () => {
    const lists = Array.from({ length: 12 }, (_, n) => `a${n}: name`)
    const told = await refused(`{ projectReports { project { ${lists.join(' ')} } } }`)
    assert.deepEqual([told.code, told.budget], ['RESULT_TOO_LARGE', 'bytes'])
  })

  it('in which all patterns count, from the first that is compiled', async () => {
    const pattern = { $regex: '(?i)\\pL{990}0' }
    const spentMs = await cpuMsOf(async () => {
      const told = await refused('query($s: MangoSelector) { users(query: {selector: $s}) { id } }', {
        s: { name: { $or: Array.from({ length: 900 }, () => pattern) } },
      })
      assert.deepEqual([told.code, told.budget], ['QUERY_TOO_COMPLEX', 'instructions'])
    })
    assert.ok(spentMs < 8_000, `took ${spentMs} ms of a processor`)
    const explains = Array.from(
      { length: 40 },
      (_, n) => `a${n}: explain(resource: users, query: {selector: {name: {_regex: "\\\\pL{${900 + n}}0"}}}) { sql }`,
    )
    assert.equal((await refused(`{ ${explains.join(' ')} }`)).budget, 'instructions')
  })

  it('of which a mutation has 2,000 fields, because it is answered beside the deliveries', async () => {
    const webhook = 'webhook { id url name labels status statusReason ordering transport createdAt updatedAt }'
    const project = 'project { id name organisationId organisation { id name } }'
    const event = `event { id type organisationId organisation { id name } projectId ${project} payload time example }`
    const own = 'id webhookId eventId eventType status attemptCount nextAttemptAt createdAt finishedAt'
    const aliases = Array.from({ length: 50 }, (_, n) => `a${n}: redeliver(deliveryId: "${randomUUID()}") { ...d }`)
    const told = await refused(
      `mutation { ${aliases.join(' ')} } fragment d on Delivery { ${own} ${webhook} ${event} waitsFor { ${own} } }`,
    )
    assert.deepEqual([told.code, told.limit], ['QUERY_TOO_COMPLEX', 2_000])
  })
})
