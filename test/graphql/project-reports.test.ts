import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, it } from 'node:test'
import { createLog } from '../../server/log.ts'
import { runSchedule } from '../../server/scheduler/scheduler.ts'
import { toIso } from '../../shared/time.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const REPORT = 'id projectId quarter dueDate status submitterId submittedAt approverId approvedDate overdueAt'
const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { ${REPORT} } }`
const APPROVE = `mutation($id: UUID!, $approverId: UUID!, $approvedDate: Date) {
  approveProjectReport(id: $id, approverId: $approverId, approvedDate: $approvedDate) { ${REPORT} } }`

describeEachEngine('project reports', engine => {
  let clock: TestClock
  let server: TestServer
  let project: { organisationId: string; projectId: string; userId: string }
  before(async () => {
    clock = testClock(Date.parse('2026-11-21T12:00:00Z'))
    server = await startTestServer(engine, { clock, env: { TIDINGS_ROLES: 'api' } })
  })
  beforeEach(async () => {
    project = await addProject(server.database, { createdAt: Date.parse('2026-07-01T00:00:00Z') })
  })
  after(() => server.stop())

  const submit = (quarter: string, given: object = {}) =>
    server.graphql(SUBMIT, { projectId: project.projectId, quarter, submitterId: project.userId, ...given })
  const approve = (id: string, given: object = {}) =>
    server.graphql(APPROVE, { id, approverId: project.userId, ...given })
  const submitted = async (quarter: string) => {
    const { data, errors } = await submit(quarter)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data.submitProjectReport
  }
  const refusal = ({ errors }: GraphqlAnswer) => {
    assert.equal(errors?.length, 1, JSON.stringify(errors))
    const { message, extensions } = errors![0]!
    const { requestId, ...rest } = extensions
    return { message, ...rest } as Record<string, unknown> & { message: string }
  }
  const eventsOf = async () => {
    const found = await server.database.knex('events').where('project_id', project.projectId).orderBy('id')
    return found.map(({ type, payload, organisation_id }) => ({ type, payload: JSON.parse(payload), organisation_id }))
  }

  it('are opened and submitted where they have not been opened, due 30 days after the quarter', async () => {
    const report = await submitted('2026-3')
    assert.deepEqual(report, {
      id: report.id,
      projectId: project.projectId,
      quarter: '2026-3',
      dueDate: '2026-10-30',
      status: 'submitted',
      submitterId: project.userId,
      submittedAt: '2026-11-21T12:00:00.000+00:00',
      approverId: null,
      approvedDate: null,
      overdueAt: null,
    })
  })

  it('are accepted late, and stay marked as overdue', async () => {
    const { database } = server
    const tools = {
      database,
      clock,
      log: createLog('silent'),
      reportDueDays: 30,
      retentionDays: 30,
      onEvents: () => {},
    }
    await runSchedule(tools)
    const report = await submitted('2026-3')
    assert.equal(report.status, 'submitted')
    assert.equal(report.overdueAt, toIso(clock.now()))
    assert.deepEqual(
      (await eventsOf()).map(({ type }) => type),
      ['project_report_quarterly_overdue', 'project_report_quarterly_submitted'],
    )
  })

  it('are a CONFLICT when submitted twice', async () => {
    const { id } = await submitted('2026-3')
    const { message, ...told } = refusal(await submit('2026-3'))
    assert.match(message, /2026-3.*already submitted/)
    assert.deepEqual(told, { code: 'CONFLICT', projectReportId: id, status: 'submitted' })
    assert.equal((await eventsOf()).length, 1)
  })

  it('are submitted once when two submit at the same time', async () => {
    const answers = await Promise.all([submit('2026-2'), submit('2026-2'), submit('2026-2')])
    const refused = answers.filter(({ errors }) => errors)
    assert.equal(refused.length, 2)
    for (const answer of refused) assert.equal(refusal(answer).code, 'CONFLICT')
    assert.equal((await eventsOf()).length, 1)
  })

  it('are a CONFLICT when approved before they are submitted, and when approved twice', async () => {
    const { id } = await submitted('2026-3')
    await server.database.knex('project_reports').where({ id }).update({ status: 'open' })
    const early = refusal(await approve(id))
    assert.equal(early.code, 'CONFLICT')
    assert.match(early.message, /submit it/)
    await server.database.knex('project_reports').where({ id }).update({ status: 'submitted' })

    await approve(id, { approvedDate: '2026-11-20' })
    const twice = refusal(await approve(id))
    assert.equal(twice.code, 'CONFLICT')
    assert.match(twice.message, /approved on 2026-11-20/)
    assert.equal(refusal(await submit('2026-3')).status, 'approved')
    assert.equal((await eventsOf()).length, 2)
  })

  it('are approved on the day given, and else on the day it is in UTC', async () => {
    const [one, two, three] = [await submitted('2026-1'), await submitted('2026-2'), await submitted('2026-3')]
    const date = async (id: string, approvedDate?: string | null) =>
      (await approve(id, { approvedDate })).data.approveProjectReport.approvedDate
    assert.equal(await date(one.id, '2024-02-29'), '2024-02-29')
    clock.set(Date.parse('2026-12-31T23:59:59.999Z'))
    assert.equal(await date(two.id), '2026-12-31')
    clock.advance(1)
    assert.equal(await date(three.id, null), '2027-01-01')
    clock.set(Date.parse('2026-11-21T12:00:00Z'))
  })

  it('are refused under a quarter that is none, and the argument is named', async () => {
    for (const quarter of ['2026-0', '2026-5', '2026-Q3', '26-3', '2026-03', '2026/3', ' 2026-3', '2026-3\n', '']) {
      const { message, ...told } = refusal(await submit(quarter))
      assert.deepEqual(told, { code: 'BAD_USER_INPUT', argument: 'quarter' })
      assert.match(message, /^quarter: .*such as 2026-3$/s)
    }
  })

  it('are not approved on a day that is none', async () => {
    const { id } = await submitted('2026-3')
    const wrong = ['2026-02-30', '2026-13-01', '2025-02-29', '2026-2-3', '21.11.2026', '2026-11-21T00:00:00Z', 20261121]
    for (const approvedDate of wrong) {
      const { message, ...told } = refusal(await approve(id, { approvedDate }))
      assert.deepEqual(told, { code: 'BAD_USER_INPUT', argument: 'approvedDate' })
      assert.match(message, /^approvedDate: .*2026-11-21/s)
    }
    assert.equal((await eventsOf()).length, 1)
  })

  it('are refused for a project, a person or a report that is not there', async () => {
    const { id } = await submitted('2026-3')
    const nobody = randomUUID()
    const refused = [
      await submit('2026-2', { projectId: nobody }),
      await submit('2026-2', { submitterId: nobody }),
      await approve(nobody),
      await approve(id, { approverId: nobody }),
    ]
    for (const answer of refused) {
      const { code, ids } = refusal(answer)
      assert.deepEqual({ code, ids }, { code: 'NOT_FOUND', ids: [nobody] })
    }
    assert.deepEqual(
      await server.database.knex('project_reports').where('project_id', project.projectId).pluck('quarter'),
      ['2026-3'],
      'a refused submission has opened nothing',
    )
  })

  it('emit an event of their organisation and project with exactly the payload that is specified', async () => {
    const { id } = await submitted('2026-3')
    await approve(id, { approvedDate: '2026-11-21' })
    const report = { id, projectId: project.projectId, quarter: '2026-3' }
    const [person, name] = [project.userId, 'Ada Okafor']
    assert.deepEqual(await eventsOf(), [
      {
        type: 'project_report_quarterly_submitted',
        organisation_id: project.organisationId,
        payload: { projectReport: { ...report, submitterId: person, submitterName: name } },
      },
      {
        type: 'project_report_quarterly_approved',
        organisation_id: project.organisationId,
        payload: {
          projectReport: { ...report, approverId: person, approverName: name, approvedDate: '2026-11-21' },
        },
      },
    ])
  })
})
