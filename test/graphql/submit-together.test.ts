import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import type { Credentials } from '../../shared/hmac.ts'
import { signRequest } from '../../shared/hmac.ts'
import { enginesHere } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook, addWebhooks } from '../support/webhooks.ts'
import { startTwoServers, type TwoServers } from './two-servers.ts'

// Reports that are submitted at the same time share transactions. Everything must be as if each had its own.

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) {
    id status quarter submitter { id } } }`

const CROWD = 24
/** Quarters of different years, so that each is new. */
const quarters = (count: number, from: number): string[] => Array.from({ length: count }, (_, n) => `${from + n}-1`)

const codesOf = (answers: GraphqlAnswer[]) => answers.map(({ errors }) => errors?.[0]?.extensions.code ?? 'done')
const allDone = (answers: GraphqlAnswer[]) =>
  assert.deepEqual(
    codesOf(answers),
    answers.map(() => 'done'),
  )

type Project = Awaited<ReturnType<typeof addProject>>
const of = ({ projectId, userId }: Project, quarter: string) => ({ projectId, quarter, submitterId: userId })

for (const engine of enginesHere()) {
  describe(`reports that are submitted at the same time (${engine})`, () => {
    let server: TestServer
    let receiver: Receiver
    let acme: Project
    let admin: Credentials & { id: string }
    before(async () => {
      server = await startTestServer(engine, { env: { TIDINGS_RATE_LIMIT: '0' } })
      receiver = await startReceiver()
      acme = await addProject(server.database)
      admin = await server.token()
      await addWebhook(server.database.knex, {
        accessTokenId: admin.id,
        url: receiver.url,
        organisationIds: [acme.organisationId],
      })
    })
    after(async () => {
      await server?.stop()
      await receiver?.close()
    })
    const submit = (variables: object, as = admin) => server.graphql(SUBMIT, variables, as)
    const knex = () => server.database.knex
    const receivedOf = (quarter: string) =>
      receiver.requests.filter(({ body }) => body.payload.projectReport?.quarter === quarter)

    it('are each submitted, logged, and delivered once', async () => {
      const given = quarters(CROWD, 2000)
      const inactive = { accessTokenId: admin.id, organisationIds: [acme.organisationId], status: 'inactive' } as const
      const inactiveId = await addWebhook(knex(), inactive)
      const answers = await Promise.all(given.map(quarter => submit(of(acme, quarter))))
      allDone(answers)
      assert.equal((await knex()('deliveries').where({ webhook_id: inactiveId })).length, 0)
      for (const [n, { data }] of answers.entries()) {
        const { id, status, quarter, submitter } = data.submitProjectReport
        assert.deepEqual([status, quarter, submitter.id], ['submitted', given[n], acme.userId])
        const row = await knex()('project_reports').where({ id }).first()
        assert.deepEqual([row.status, row.due_date], ['submitted', `${given[n]!.slice(0, 4)}-04-30`])
      }
      await receiver.waitFor(() => given.every(quarter => receivedOf(quarter).length > 0))
      for (const quarter of given) {
        const [received, ...more] = receivedOf(quarter)
        assert.deepEqual([received!.body.payload.projectReport.submitterName, more.length], ['Ada Okafor', 0])
      }
      const entries = await knex()('audit_log').where({ operation: 'submitProjectReport', access_token_id: admin.id })
      const logged = entries.map(row => JSON.parse(row.arguments).quarter).toSorted()
      assert.deepEqual(logged, given)
      assert.equal(new Set(entries.map(row => row.request_id)).size, CROWD)
      const queue = () => knex()('delivery_queue').select('delivery_id')
      await eventually('the queue to be empty', queue, left => left.length === 0)
    })

    it('are submitted where they have been opened, and stay overdue', async () => {
      const given = quarters(CROWD, 2100)
      const now = Date.now()
      await knex()('project_reports').insert(
        given.map((quarter, n) => ({
          ...{ id: randomUUID(), project_id: acme.projectId, quarter, due_date: '2030-01-30', status: 'open' },
          ...{ overdue_at: n % 2 === 0 ? now : null, created_at: now, updated_at: now },
        })),
      )
      const others = await Promise.all(given.map(() => addPerson(server)))
      const answers = await Promise.all(
        given.map((quarter, n) => submit({ ...of(acme, quarter), submitterId: others[n]! })),
      )
      allDone(answers)
      const rows = await knex()('project_reports').whereIn('quarter', given).orderBy('quarter')
      assert.deepEqual(
        rows.map(row => [row.status, row.submitter_id, row.overdue_at !== null]),
        given.map((_, n) => ['submitted', others[n], n % 2 === 0]),
      )
    })

    it('are refused each for its own reason, and hinder no other', async () => {
      const foreign = await addProject(server.database)
      const limited = await server.token({ permissions: ['reports'], organisationIds: [acme.organisationId] })
      const reader = await server.token({ permissions: ['read'] })
      const mine = quarters(CROWD, 2200)
      const submitted = '2299-4'
      allDone([await submit(of(acme, submitted))])
      const refused: [object, Credentials & { id: string }, string][] = [
        [of(acme, submitted), admin, 'CONFLICT'],
        [of({ ...acme, projectId: randomUUID() }, '2299-1'), admin, 'NOT_FOUND'],
        [of({ ...acme, userId: randomUUID() }, '2299-1'), admin, 'NOT_FOUND'],
        [of(foreign, '2299-1'), limited, 'NOT_FOUND'],
        [of(acme, '2299-1'), reader, 'FORBIDDEN'],
        [of(acme, '2299-5'), admin, 'BAD_USER_INPUT'],
      ]
      const asked = mine.flatMap((quarter, n) => [
        submit(of(acme, quarter), n % 2 ? admin : limited),
        ...(refused[n] ? [submit(refused[n][0], refused[n][1])] : []),
      ])
      const answers = codesOf(await Promise.all(asked))
      assert.deepEqual(answers.filter(code => code !== 'done').toSorted(), refused.map(([, , code]) => code).toSorted())
      assert.equal(answers.filter(code => code === 'done').length, CROWD)
      assert.equal((await knex()('project_reports').where({ quarter: '2299-1' })).length, 0)
    })

    it('are submitted once where they are the same report', async () => {
      const twice = quarters(CROWD / 2, 2300)
      const answers = codesOf(await Promise.all([...twice, ...twice].map(quarter => submit(of(acme, quarter)))))
      assert.equal(answers.filter(code => code === 'done').length, twice.length)
      assert.equal(answers.filter(code => code === 'CONFLICT').length, twice.length)
      await receiver.waitFor(() => twice.every(quarter => receivedOf(quarter).length > 0))
      assert.ok(twice.every(quarter => receivedOf(quarter).length === 1))
    })

    it('are submitted once where they are the same signed request', async () => {
      const [first, ...others] = quarters(CROWD, 2400)
      const body = JSON.stringify({ query: SUBMIT, variables: of(acme, first!) })
      const url = new URL('/graphql', server.url)
      const signed = signRequest({ method: 'POST', url, body, credentials: admin, at: new Date(), nonce: 'same' })
      const send = async () => {
        const headers = { ...signed, 'content-type': 'application/json', accept: 'application/json' }
        const answer = (await (await fetch(url, { method: 'POST', headers, body })).json()) as GraphqlAnswer
        return answer.errors?.[0]?.extensions.reason ?? 'done'
      }
      const all = [send(), ...others.slice(1).map(quarter => submit(of(acme, quarter))), send(), send()]
      const answers = await Promise.all(all)
      const sent = answers.filter(answer => typeof answer === 'string')
      allDone(answers.filter(answer => typeof answer !== 'string'))
      assert.deepEqual(sent.toSorted(), ['done', 'replayed', 'replayed'])
    })

    it('keep the order of a webhook that asks for it, and reach one of many webhooks too', async () => {
      const ordered = await addProject(server.database)
      const crowded = await addProject(server.database)
      let open = 0
      let most = 0
      const keeping = await startReceiver({
        answer: async () => {
          most = Math.max(most, ++open)
          await wait(10)
          open -= 1
          return { status: 200 }
        },
      })
      await addWebhook(knex(), {
        ...{ accessTokenId: admin.id, url: keeping.url, organisationIds: [ordered.organisationId] },
        ordering: 'project',
      })
      const many = Array.from({ length: 20 }, () => ({
        ...{ accessTokenId: admin.id, url: receiver.url, organisationIds: [crowded.organisationId] },
      }))
      await addWebhooks(knex(), many)
      const given = quarters(CROWD, 2500)
      const answers = await Promise.all(
        given.map((quarter, n) => submit(of([ordered, crowded, acme][n % 3]!, quarter))),
      )
      allDone(answers)
      const ofOrdered = given.filter((_, n) => n % 3 === 0)
      await keeping.waitFor(all => all.length === ofOrdered.length)
      const events = await knex()('events').where({ project_id: ordered.projectId }).orderBy(['created_at', 'id'])
      assert.deepEqual(
        keeping.requests.map(({ body }) => body.payload.projectReport.quarter),
        events.map(({ payload }) => JSON.parse(payload).projectReport.quarter),
      )
      assert.equal(most, 1, 'the next is sent when the one before has come to its end')
      const ofCrowded = given.filter((_, n) => n % 3 === 1)
      await receiver.waitFor(() => ofCrowded.every(quarter => receivedOf(quarter).length === many.length))
      await keeping.close()
    })
  })
}

const addPerson = async ({ database }: TestServer): Promise<string> => {
  const [id, now] = [randomUUID(), Date.now()]
  await database.knex('users').insert({ id, name: 'Bo Lindqvist', created_at: now, updated_at: now })
  return id
}

// TiDB has no SKIP LOCKED: there each report has a transaction of its own.
for (const engine of enginesHere().filter(name => !/^(sqlite|tidb)/.test(name))) {
  describe(`reports that share a transaction (${engine})`, () => {
    let two: TwoServers
    let acme: Project
    before(async () => {
      two = await startTwoServers(engine)
      acme = await addProject(two.stopped.database)
      // Its first use is noted, which locks the token for a moment.
      await two.byStopped('{ viewer { id } }')
      await addWebhook(two.stopped.database.knex, {
        accessTokenId: two.admin.id,
        organisationIds: [acme.organisationId],
        events: ['project_report_quarterly_submitted'],
      })
    })
    after(() => two?.stop())
    const submitAll = (given: string[], project = acme) =>
      Promise.all(given.map(quarter => two.byStopped(SUBMIT, of(project, quarter))))
    /** An INSERT of more than one row. */
    const isOfGroup = (text: string): boolean => /^INSERT INTO audit_log[^;]*\), \(/s.test(text)

    it('need few commits', async () => {
      const seen: string[] = []
      const end = two.proxy.watch(text => seen.push(text))
      allDone(await submitAll(quarters(CROWD, 2000)))
      end()
      const commits = seen.filter(text => /^COMMIT/i.test(text)).length
      assert.ok(commits < CROWD / 2, `${commits} commits for ${CROWD} reports`)
    })

    /** Submits many reports while `lock` holds rows that only some of them need, and returns when each was answered. */
    const besideLocked = async (lock: (trx: import('knex').Knex) => Promise<unknown>, given: object[]) => {
      let isHeld = true
      let rollbacks = 0
      const end = two.proxy.watch(text => {
        if (/^ROLLBACK/i.test(text)) rollbacks += 1
      })
      const answered: Promise<{ code: string; whileHeld: boolean }>[] = []
      await two.stopped.database.transaction(async trx => {
        await lock(trx)
        for (const variables of given) {
          const answer = two.byStopped(SUBMIT, variables)
          answered.push(answer.then(one => ({ code: codesOf([one])[0]!, whileHeld: isHeld })))
        }
        await Promise.all(answered.slice(1))
        isHeld = false
      })
      const [first, ...others] = await Promise.all(answered)
      end()
      return { first, others, rollbacks }
    }

    it('are not held up by one whose project another transaction is changing', async () => {
      const held = await addProject(two.stopped.database)
      const { first, others, rollbacks } = await besideLocked(
        trx => trx('projects').where('id', held.projectId).update({ name: 'Held' }),
        [of(held, '2100-1'), ...quarters(CROWD, 2100).map(quarter => of(acme, quarter))],
      )
      assert.deepEqual(first, { code: 'done', whileHeld: false })
      assert.ok(others.every(({ code, whileHeld }) => code === 'done' && whileHeld))
      assert.equal(rollbacks, 0, 'no group waited for it')
    })

    it('are not held up by one whose open report another transaction is changing', async () => {
      const held = await addProject(two.stopped.database)
      const now = Date.now()
      const id = randomUUID()
      const report = { id, project_id: held.projectId, quarter: '2150-1', due_date: '2150-04-30', status: 'open' }
      await two.stopped.database.knex('project_reports').insert({ ...report, created_at: now, updated_at: now })
      const { first, others, rollbacks } = await besideLocked(
        trx =>
          trx('project_reports')
            .where({ id })
            .update({ updated_at: now + 1 }),
        [of(held, '2150-1'), ...quarters(CROWD, 2150).map(quarter => of(acme, quarter))],
      )
      assert.deepEqual(first, { code: 'done', whileHeld: false })
      assert.ok(others.every(({ code, whileHeld }) => code === 'done' && whileHeld))
      assert.equal(rollbacks, 0, 'no group waited for it')
    })

    it('are not held up by one that another transaction is inserting', async () => {
      const now = Date.now()
      const row = { id: randomUUID(), project_id: acme.projectId, quarter: '2200-1', due_date: '2200-04-30' }
      const given = [of(acme, '2200-1'), ...quarters(CROWD, 2201).map(quarter => of(acme, quarter))]
      const { first, others } = await besideLocked(
        trx => trx('project_reports').insert({ ...row, status: 'submitted', created_at: now, updated_at: now }),
        given,
      )
      assert.deepEqual(first, { code: 'CONFLICT', whileHeld: false })
      assert.ok(others.every(({ code, whileHeld }) => code === 'done' && whileHeld))
    })

    it('still share one after another process has made one of them', async () => {
      // After the failure of a group, its projects go alone for a while.
      const free = await addProject(two.stopped.database)
      const now = Date.now()
      const row = { id: randomUUID(), project_id: free.projectId, quarter: '2250-1', due_date: '2250-04-30' }
      const others = quarters(CROWD, 2251)
      const seen: string[] = []
      const end = two.proxy.watch(text => seen.push(text))
      let answered: Promise<GraphqlAnswer[]> | undefined
      await two.stopped.database.transaction(async trx => {
        await trx('project_reports').insert({ ...row, status: 'submitted', created_at: now, updated_at: now })
        answered = submitAll([...others, '2250-1'], free)
        await eventually(
          'the group to meet the row',
          () => seen.some(text => text.startsWith('INSERT INTO project_reports') && text.includes('2250-1')),
          isIt => isIt,
        )
      })
      const codes = codesOf(await answered!)
      end()
      assert.deepEqual(codes, [...others.map(() => 'done'), 'CONFLICT'])
      const commits = seen.filter(text => /^COMMIT/i.test(text)).length
      assert.ok(commits < CROWD / 2, `${commits} commits for ${CROWD} reports`)
    })

    it('share one beside those that are refused, again and again, for a project of very many webhooks', async () => {
      const [free, crowded] = [await addProject(two.stopped.database), await addProject(two.stopped.database)]
      const webhook = { accessTokenId: two.admin.id, projectIds: [crowded.projectId] }
      await addWebhooks(two.stopped.database.knex, Array(1_100).fill(webhook))
      const blind = await two.stopped.token({ permissions: ['reports'], organisationIds: [free.organisationId] })
      const commitsOf = async (from: number): Promise<number> => {
        let commits = 0
        const end = two.proxy.watch(text => {
          if (/^COMMIT/i.test(text)) commits += 1
        })
        const answered = submitAll(quarters(CROWD, from), free)
        const refused = await Promise.all(
          quarters(4, from).map(quarter => two.byStopped(SUBMIT, of(crowded, quarter), blind)),
        )
        allDone(await answered)
        assert.deepEqual(codesOf(refused), Array(4).fill('NOT_FOUND'))
        end()
        return commits
      }
      // The first time nobody knows of it yet.
      await commitsOf(2270)
      const commits = await commitsOf(2310)
      assert.ok(commits < CROWD / 2, `${commits} commits for ${CROWD} reports`)
    })

    it('are not held up by one whose webhook another transaction is changing', async () => {
      const held = await addProject(two.stopped.database)
      const webhookId = await addWebhook(two.stopped.database.knex, {
        accessTokenId: two.admin.id,
        projectIds: [held.projectId],
      })
      const { first, others, rollbacks } = await besideLocked(
        trx =>
          trx('webhooks')
            .where('id', webhookId)
            .update({ status: 'disabled', updated_at: Date.now() + 1 }),
        [of(held, '2300-1'), ...quarters(CROWD, 2300).map(quarter => of(acme, quarter))],
      )
      assert.deepEqual(first, { code: 'done', whileHeld: false })
      assert.ok(others.every(({ code, whileHeld }) => code === 'done' && whileHeld))
      assert.equal(rollbacks, 0, 'no group waited for it')
      const sent = await two.stopped.database.knex('deliveries').where({ webhook_id: webhookId })
      assert.equal(sent.length, 0, 'a webhook that was disabled meanwhile is sent nothing')
    })

    for (const [where, answer, from] of [
      ['before their commit has arrived', false, 2400],
      ['before their commit is answered', true, 2500],
    ] as const) {
      it(`are submitted once, and answered, where the connection breaks ${where}`, async () => {
        let isGroup = false
        const ofGroup = (text: string): boolean => {
          isGroup ||= isOfGroup(text)
          return isGroup && /^COMMIT/i.test(text)
        }
        const hold = two.proxy.hold(ofGroup, { answer, times: 2 })
        const given = quarters(CROWD, from)
        // Reports of a project whose group has failed are submitted alone for a while.
        const project = await addProject(two.stopped.database)
        const asking = submitAll(given, project)
        await hold.caught
        two.proxy.cut()
        hold.end()
        const answers = await asking
        allDone(answers)
        const rows = await two.stopped.database.knex('project_reports').whereIn('quarter', given).orderBy('quarter')
        assert.deepEqual(
          rows.map(({ id }) => id),
          answers.map(({ data }) => data.submitProjectReport.id),
        )
        const events = await two.stopped.database.knex('events').where({ project_id: project.projectId })
        const told = events.map(({ payload }) => JSON.parse(payload).projectReport?.quarter)
        assert.deepEqual(told.filter(quarter => given.includes(quarter)).toSorted(), given)
      })
    }

    it('are not submitted by a token that is revoked meanwhile', async () => {
      const token = await two.stopped.token({ permissions: ['reports'] })
      const hold = two.proxy.hold(text => /^SELECT t\.\*.* WHERE t\.id IN/s.test(text))
      const given = quarters(CROWD, 2600)
      const project = await addProject(two.stopped.database)
      const asking = Promise.all(
        given.map((quarter, n) => two.byStopped(SUBMIT, of(project, quarter), n % 2 ? token : two.admin)),
      )
      await hold.caught
      await two.byOther('mutation ($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: token.id })
      hold.end()
      const answers = await asking
      allDone(answers.filter((_, n) => n % 2 === 0))
      const reasons = answers.flatMap(({ errors }) => errors?.[0]?.extensions.reason ?? [])
      assert.ok(reasons.length > 0 && reasons.every(reason => reason === 'revoked'), String(reasons))
    })
  })
}
