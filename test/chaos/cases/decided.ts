import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import type { DatabaseProxy } from '../proxy.ts'
import { type Answer, type Client, clientOf, done } from '../stage/client.ts'
import type { Endpoint } from '../stage/endpoint.ts'
import {
  APPROVE,
  CREATE_WEBHOOK,
  createToken,
  gate,
  PING,
  REDELIVER,
  REVOKE,
  type Stage,
  SUBMIT,
  UPSERT_PROJECT,
  UPSERT_WEBHOOK,
  until,
  untilAnswered,
  untilSettled,
  within,
} from '../stage/stage.ts'
import { atEachStatement, type Result, type Steps, shown } from '../stage/steps.ts'
import { ALL, type Case, SHARED } from './case.ts'

// The transaction of a mutation decides what it may do, on rows that it has locked.

const NATURAL_ROUNDS = 30
const SUBMITTED = 'project_report_quarterly_submitted'
const APPROVED = 'project_report_quarterly_approved'
const OVERDUE = 'project_report_quarterly_overdue'

/** Two processes: one is stopped at its statements, the other acts meanwhile. On SQLite one does both. */
const two = async (stage: Stage, env: Record<string, string> = {}) => {
  if (stage.engine === 'sqlite') {
    const server = await stage.server({ env })
    return { stopped: server, other: server, by: undefined }
  }
  const by = await stage.proxy()
  return { stopped: await stage.server({ by, roles: 'api', env }), other: await stage.server({ env }), by }
}

const expectNone = (stage: Stage, sentence: string, steps: Steps): void =>
  stage.expect(sentence, steps.wrong.length === 0 && steps.steps > 0, shown(steps))

/** Both at once, again and again. */
const naturally = async <T>(
  rounds: number,
  round: {
    prepare: () => Promise<T>
    act: (given: T) => Promise<unknown>
    meanwhile: (given: T) => Promise<unknown>
    check: (given: T, result: Result) => Promise<string | undefined>
  },
): Promise<Steps> => {
  const wrong: string[] = []
  for (let n = 0; n < rounds; n++) {
    const given = await round.prepare()
    const [acted, happened] = await Promise.all([round.act(given), wait(n % 10).then(() => round.meanwhile(given))])
    const found = await round.check(given, { acted, happened, hadHappened: false })
    if (found) wrong.push(found)
  }
  return { steps: rounds, wrong }
}

const isDone = (answer: unknown): boolean => (answer as Answer).code === undefined

const PING_MS = 1_500

const revokedToken: Case = {
  name: 'revoked-token',
  says: 'A token that is revoked while a document of its mutations runs does nothing more',
  engines: ALL,
  async run(stage) {
    const server = await stage.server()
    const client = stage.client(server)
    const slow = await stage.endpoint(undefined, () => ({ status: 200, afterMs: PING_MS }))
    const fast = await stage.endpoint()
    const { id: webhookId } = await done(client(CREATE_WEBHOOK, { url: fast.url }))
    const count = 3
    let tokens = 0
    let webhooks = 0
    let urls = 0
    const revokeDuring = async (document: string, variables: object) => {
      const token = await createToken(client, 'to be revoked', ['admin'])
      const acting = stage.client(server, token)(document, variables)
      const before = slow.pings.length
      await until('it pings', () => slow.pings.length > before)
      await done(client(REVOKE, { id: token.id }))
      return { token, answer: await acting }
    }
    for (let n = 0; n < count; n++) {
      const { token, answer } = await revokeDuring(
        `mutation ($url: String!) { a: createWebhook(url: $url) { id } b: createWebhook(url: $url) { id }
         c: createAccessToken(name: "made by a revoked one", permissions: [admin]) { apiKey secret } }`,
        { url: slow.url },
      )
      const made = answer.data?.c as { apiKey: string; secret: string } | undefined
      if (made) {
        const its = clientOf(server.url, { id: '', apiKey: made.apiKey, apiSecret: made.secret })
        if ((await its('{ viewer { name } }')).code === undefined) tokens += 1
      }
      webhooks += await stage.sql.number('SELECT COUNT(*) FROM webhooks WHERE access_token_id = ?', [token.id])
      const changed = await revokeDuring(
        'mutation ($id: UUID!, $url: String!) { upsertWebhook(id: $id, url: $url) { id } }',
        {
          id: webhookId,
          url: slow.url,
        },
      )
      if (isDone(changed.answer)) urls += 1
      await done(client(UPSERT_WEBHOOK, { id: webhookId, url: fast.url }))
    }
    stage.expect('no token is made', tokens === 0, `a working admin token was made in ${tokens} of ${count}`)
    stage.expect('no webhook is stored', webhooks === 0, `${webhooks} webhooks were stored in ${count}`)
    stage.expect("no other's url is changed", urls === 0, `another's url was changed in ${urls} of ${count}`)
  },
}

const revokedHeld: Case = {
  name: 'revoked-held',
  says: 'A mutation of a token that is revoked before it is committed is not done, whatever statement it stands at',
  engines: SHARED,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const submitted = () => stage.sql.number("SELECT COUNT(*) FROM events WHERE type <> 'ping'")
    const steps = await atEachStatement(by!, {
      async prepare() {
        return { token: await createToken(client, 'to be revoked', ['reports']), before: await submitted() }
      },
      act: ({ token }) => world.submit(stage.client(stopped, token)),
      async meanwhile({ token, before }) {
        const wasCommitted = (await submitted()) > before
        await done(client(REVOKE, { id: token.id }))
        return wasCommitted
      },
      check: async (_given, { acted, happened: wasCommitted, hadHappened }) =>
        hadHappened && !wasCommitted && isDone(acted) ? 'submitted after the revocation was acknowledged' : undefined,
    })
    expectNone(stage, 'nothing is done after the revocation was acknowledged', steps)
  },
}

const projectPulled: Case = {
  name: 'project-pulled',
  says: 'A limited admin changes no project that has moved to an organisation out of its sight',
  engines: ALL,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const [own, foreign] = world.projects
    const limited = await createToken(client, 'limited', ['admin'], [own!.organisationId])
    const round = {
      prepare: async () =>
        (await done(client(UPSERT_PROJECT, { organisationId: own!.organisationId, name: 'Moving' }))).id,
      act: (id: string) =>
        stage.client(stopped, limited)(UPSERT_PROJECT, { id, organisationId: own!.organisationId, name: 'Pulled' }),
      meanwhile: (id: string) =>
        done(client(UPSERT_PROJECT, { id, organisationId: foreign!.organisationId, name: 'Moved' })),
      check: async (id: string) => {
        const [project] = await stage.sql.rows<{ organisation_id: string }>(
          'SELECT organisation_id FROM projects WHERE id = ?',
          [id],
        )
        return project!.organisation_id === own!.organisationId ? 'pulled back' : undefined
      },
    }
    if (by) expectNone(stage, 'the project stays where it was moved (held)', await atEachStatement(by, round))
    expectNone(stage, 'the project stays where it was moved', await naturally(NATURAL_ROUNDS, round))
  },
}

/** Projects of one organisation that move to another, and the webhook of each organisation. */
const moving = async (stage: Stage, client: Client) => {
  const world = await stage.world(client)
  const [from, to] = world.projects
  const old = await stage.endpoint()
  await done(client(CREATE_WEBHOOK, { url: old.url, organisationIds: [from!.organisationId] }))
  const prepare = async () =>
    (await done(client(UPSERT_PROJECT, { organisationId: from!.organisationId, name: 'Moving' }))).id
  /** Says whether the project had its event before it moved. */
  const move = async (id: string, type: string): Promise<boolean> => {
    const told = 'SELECT COUNT(*) FROM events WHERE project_id = ? AND type = ?'
    const wasTold = (await stage.sql.number(told, [id, type])) > 0
    await done(client(UPSERT_PROJECT, { id, organisationId: to!.organisationId, name: 'Moved' }))
    return wasTold
  }
  /** What is wrong with the last event of a project that had moved before it was committed. */
  const check = async (id: string, type: string, { happened: wasTold, hadHappened }: Result) => {
    if (!hadHappened || wasTold) return undefined
    const found = await stage.sql.rows<{ organisation_id: string }>(
      'SELECT organisation_id FROM events WHERE project_id = ? AND type = ? ORDER BY id DESC LIMIT 1',
      [id, type],
    )
    return found[0]?.organisation_id === from!.organisationId ? 'the event went to the organisation left' : undefined
  }
  return { world, from: from!, to: to!, old, prepare, move, check }
}

const submitOf = (client: Client, projectId: string, submitterId: string) =>
  client(SUBMIT, { projectId, quarter: '3000-1', submitterId })

const eventLeft: Case = {
  name: 'event-left-organisation',
  says: 'No event goes to an organisation that its project had left before it was committed',
  engines: SHARED,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const { world, old, prepare, move, check } = await moving(stage, client)
    const submitted = await atEachStatement(by!, {
      prepare,
      act: id => submitOf(stage.client(stopped), id, world.userId),
      meanwhile: id => move(id, SUBMITTED),
      check: (id, result) => check(id, SUBMITTED, result),
    })
    expectNone(stage, 'of a submit', submitted)
    const approved = await atEachStatement(by!, {
      async prepare() {
        const id = await prepare()
        const report = await done(submitOf(client, id, world.userId))
        return { id, reportId: report.id }
      },
      act: ({ reportId }) => stage.client(stopped)(APPROVE, { id: reportId, approverId: world.userId }),
      meanwhile: ({ id }) => move(id, APPROVED),
      check: ({ id }, result) => check(id, APPROVED, result),
    })
    expectNone(stage, 'of an approval', approved)
    await untilSettled(stage)
    stage.say(`the endpoint of the organisation that was left had ${old.arrivals.length}`)
  },
}

const overdueLeft: Case = {
  name: 'overdue-left-organisation',
  says: 'No report is told overdue to an organisation that its project had left before the event was committed',
  engines: SHARED,
  async run(stage) {
    const client = stage.client(await stage.server())
    const { prepare, move, check } = await moving(stage, client)
    const by = await stage.proxy()
    const isTold = async (id: string) =>
      (await stage.sql.number('SELECT COUNT(*) FROM events WHERE project_id = ? AND type = ?', [id, OVERDUE])) > 0
    /** A project whose report is overdue; a new project owes none yet. */
    const prepareLate = async () => {
      const id = await prepare()
      await stage.sql.run(
        `INSERT INTO project_reports (id, project_id, quarter, due_date, status, created_at, updated_at)
         VALUES (?, ?, '2020-1', '2020-04-30', 'open', 0, 0)`,
        [randomUUID(), id],
      )
      return id
    }
    const schedule = async (id: string, way: { by?: DatabaseProxy }) => {
      const scheduler = await stage.serverStarting({ ...way, roles: 'scheduler' })
      await until('it is told', () => isTold(id))
      scheduler.signal('SIGKILL')
      await scheduler.ended
    }
    await schedule(await prepareLate(), {})
    const steps = await atEachStatement(by, {
      prepare: prepareLate,
      act: id => schedule(id, { by }),
      meanwhile: id => move(id, OVERDUE),
      check: (id, result) => check(id, OVERDUE, result),
      from: /overdue_at/i,
    })
    expectNone(stage, 'of a report that is overdue', steps)
  },
}

const narrowed: Case = {
  name: 'narrowed-webhook',
  says: 'An event that a narrowed webhook may no longer see does not arrive at its new url',
  engines: SHARED,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const [kept, left] = world.projects
    const old = await stage.endpoint()
    const next = await stage.endpoint()
    const organisationIds = [kept!.organisationId, left!.organisationId]
    const steps = await atEachStatement(by!, {
      prepare: async () => (await done(client(CREATE_WEBHOOK, { url: old.url, organisationIds }))).id,
      act: () => world.submit(stage.client(stopped), 1),
      async meanwhile(id) {
        const queued = 'SELECT COUNT(*) FROM deliveries WHERE webhook_id = ? AND event_type = ?'
        const wasQueued = (await stage.sql.number(queued, [id, SUBMITTED])) > 0
        await done(client(UPSERT_WEBHOOK, { id, url: next.url, organisationIds: [kept!.organisationId] }))
        return wasQueued
      },
      async check(id, { happened: wasQueued, hadHappened }) {
        await untilSettled(stage)
        const had = next.arrivals.length
        next.arrivals.splice(0)
        await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
        return hadHappened && !wasQueued && had > 0 ? 'it arrived at the new url' : undefined
      },
    })
    expectNone(stage, 'what it may not see does not arrive at the new url', steps)
  },
}

/** Deliveries that are pending and not queued, or queued and not pending. */
const inconsistent = (stage: Stage): Promise<number> =>
  stage.sql.number(
    `SELECT (SELECT COUNT(*) FROM deliveries d WHERE d.status = 'pending'
        AND NOT EXISTS (SELECT 1 FROM delivery_queue q WHERE q.delivery_id = d.id))
      + (SELECT COUNT(*) FROM delivery_queue q
        WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = q.delivery_id AND d.status = 'pending'))`,
  )

const pingDisabled: Case = {
  name: 'ping-disabled',
  says: 'No ping goes out after its webhook was disabled, and none stays pending for ever',
  engines: ALL,
  async run(stage) {
    // A second attempt may begin within a second of the end of its webhook, as that of any delivery (`disabled`).
    const { stopped, other, by } = await two(stage, { TIDINGS_RETRY_SCHEDULE: '3600' })
    const client = stage.client(other)
    // Those on demand are failures, so that they are pending after their first attempt.
    let pingStatus = 200
    const endpoint = await stage.endpoint(undefined, () => ({ status: pingStatus }))
    const prepare = async () => {
      pingStatus = 200
      const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
      pingStatus = 500
      endpoint.pings.splice(0)
      return id
    }
    const disable = (client: Client, id: string) => done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
    let lost = 0
    const checkQueued = async (): Promise<string | undefined> => {
      const now = await inconsistent(stage)
      const more = now - lost
      lost = now
      return more > 0 ? `${more} pending and not queued` : undefined
    }
    if (by) {
      const pinged = await atEachStatement(by, {
        prepare,
        act: id => stage.client(stopped)(PING, { id }),
        async meanwhile(id) {
          await disable(client, id)
          return Date.now()
        },
        async check(_id, { happened, hadHappened }) {
          await wait(200)
          const late = endpoint.pings.filter(({ at }) => at > (happened as number)).length
          return hadHappened && late > 0 ? 'a ping went out after the disable was acknowledged' : checkQueued()
        },
      })
      expectNone(stage, 'no ping goes out after its webhook was disabled (held)', pinged)
      const disabled = await atEachStatement(by, {
        prepare,
        act: id => disable(stage.client(stopped), id),
        meanwhile: id => client(PING, { id }),
        check: async () => {
          await wait(100)
          return checkQueued()
        },
      })
      expectNone(
        stage,
        'what is pending is queued, whenever a ping comes while its webhook is disabled (held)',
        disabled,
      )
    }
    const rounds = await naturally(2 * NATURAL_ROUNDS, {
      prepare,
      act: id => client(PING, { id }),
      meanwhile: id => disable(stage.client(stopped), id),
      check: async () => checkQueued(),
    })
    await wait(500)
    expectNone(stage, 'what is pending is queued', rounds)
  },
}

const late429: Case = {
  name: 'late-429',
  says: 'A 429 of the old url changes nothing for the webhook that has a new one',
  engines: ALL,
  async run(stage) {
    const server = await stage.server()
    const client = stage.client(server)
    const world = await stage.world(client)
    const count = 3
    for (const [name, headers] of [
      ['without Retry-After', {}],
      ['with Retry-After: 3600', { 'retry-after': '3600' }],
    ] as const) {
      const states: string[] = []
      for (let n = 0; n < count; n++) {
        const told = gate()
        const old = await stage.endpoint(async () => {
          await told.opened
          return { status: 429, headers }
        })
        const next = await stage.endpoint()
        const { id } = await done(client(CREATE_WEBHOOK, { url: old.url }))
        await done(world.submit(client))
        await until('it arrives', () => old.arrivals.length === 1)
        await done(client(UPSERT_WEBHOOK, { id, url: next.url }))
        told.open()
        await until('it is recorded', async () => {
          const recorded =
            'SELECT COUNT(*) FROM attempts a JOIN deliveries d ON d.id = a.delivery_id WHERE d.webhook_id = ? ' +
            'AND a.status_code = 429'
          return (await stage.sql.number(recorded, [id])) > 0
        })
        await wait(300)
        const [webhook] = await stage.sql.rows<{ status: string; held_until: number | null }>(
          'SELECT status, held_until FROM webhooks WHERE id = ?',
          [id],
        )
        if (webhook!.status !== 'active') states.push(webhook!.status)
        else if (webhook!.held_until !== null) states.push('held')
        await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
      }
      stage.expect(
        `${name}: the webhook is active, and not held`,
        states.length === 0,
        `${name}: ${states.length} of ${count} changed${states.length > 0 ? ` (${states[0]})` : ''}`,
      )
    }
  },
}

const cancelUnseen: Case = {
  name: 'cancelled-delivered',
  says: 'What was delivered is not cancelled by a change of the url by a token that does not see it',
  engines: ALL,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const [kept, left] = world.projects
    const limited = await createToken(client, 'limited', ['admin'], [kept!.organisationId])
    const next = await stage.endpoint()
    type Given = { id: string; old: Endpoint; answer: () => void }
    const statusOf = async (id: string) =>
      (
        await stage.sql.rows<{ status: string }>(
          "SELECT status FROM deliveries WHERE webhook_id = ? AND event_type <> 'ping'",
          [id],
        )
      )[0]!.status
    const round = {
      async prepare(): Promise<Given> {
        const told = gate()
        const old = await stage.endpoint(async () => {
          await told.opened
          return { status: 200 }
        })
        const organisationIds = [kept!.organisationId, left!.organisationId]
        const { id } = await done(client(CREATE_WEBHOOK, { url: old.url, organisationIds }))
        await done(world.submit(client, 1))
        await until('it arrives', () => old.arrivals.length === 1)
        // From here on the limited one may redirect it.
        await done(client(UPSERT_WEBHOOK, { id, organisationIds: [kept!.organisationId] }))
        return { id, old, answer: told.open }
      },
      act: ({ id }: Given) => stage.client(stopped, limited)(UPSERT_WEBHOOK, { id, url: next.url }),
      async meanwhile({ id, answer }: Given) {
        answer()
        return until('it is delivered', async () => (await statusOf(id)) === 'delivered', 10_000).catch(() => {})
      },
      async check({ id, old }: Given, { acted }: { acted: unknown }) {
        if (!isDone(acted)) stage.say(`the change of the url answered ${(acted as Answer).code}`)
        const isDelivered = await within(2_000, async () => (await statusOf(id)) === 'delivered')
        await old.close()
        await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
        return isDelivered ? undefined : `answered 200, and ${await statusOf(id)}`
      },
    }
    if (by) expectNone(stage, 'what was answered 200 is delivered (held)', await atEachStatement(by, round))
    expectNone(stage, 'what was answered 200 is delivered', await naturally(NATURAL_ROUNDS, round))
  },
}

const DAY_MS = 24 * 3_600_000

const redeliverPurged: Case = {
  name: 'redeliver-purged',
  says: 'No delivery is without its event, whenever the purge comes while it is redelivered',
  engines: SHARED,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id: webhookId } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const orphans = () =>
      stage.sql.number(
        'SELECT COUNT(*) FROM deliveries d WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = d.event_id)',
      )
    const isThere = async (eventId: string) =>
      (await stage.sql.number('SELECT COUNT(*) FROM events WHERE id = ?', [eventId])) > 0
    let lost = 0
    const steps = await atEachStatement(by!, {
      async prepare() {
        await done(world.submit(client))
        await untilSettled(stage)
        const [delivery] = await stage.sql.rows<{ id: string; event_id: string }>(
          'SELECT id, event_id FROM deliveries WHERE webhook_id = ? ORDER BY id DESC LIMIT 1',
          [webhookId],
        )
        const old = Date.now() - 2 * DAY_MS
        await stage.sql.run('UPDATE events SET created_at = ? WHERE id = ?', [old, delivery!.event_id])
        return { deliveryId: delivery!.id, eventId: delivery!.event_id }
      },
      act: ({ deliveryId }) => stage.client(stopped)(REDELIVER, { deliveryId }),
      async meanwhile({ eventId }) {
        const purging = await stage.serverStarting({ roles: 'scheduler', env: { TIDINGS_RETENTION_DAYS: '1' } })
        await within(6_000, async () => !(await isThere(eventId)))
        purging.signal('SIGKILL')
        await purging.ended
      },
      async check() {
        await wait(500)
        const now = await orphans()
        const more = now - lost
        lost = now
        return more > 0 ? `${more} delivery without its event` : undefined
      },
      from: /FROM\s+`?deliveries/i,
      meanwhileMs: 10_000,
    })
    expectNone(stage, 'no delivery is without its event', steps)
    const { code } = await untilAnswered(() => client('{ deliveries { id event { id } } }'))
    stage.expect('deliveries can be read', code === undefined, `deliveries answer ${code ?? 'all'}`)
  },
}

const timesTaken: Case = {
  name: 'finished-before-created',
  says: 'No delivery is finished before it was created',
  engines: SHARED,
  async run(stage) {
    const { stopped, other, by } = await two(stage)
    const client = stage.client(other)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint(() => 'hang')
    let seen = 0
    const steps = await atEachStatement(by!, {
      prepare: async () => (await done(client(CREATE_WEBHOOK, { url: endpoint.url }))).id,
      act: id => done(stage.client(stopped)(UPSERT_WEBHOOK, { id, status: 'disabled' })),
      async meanwhile() {
        await wait(50)
        await done(world.submit(client))
      },
      async check(id) {
        const now = await stage.sql.number(
          'SELECT COUNT(*) FROM deliveries WHERE webhook_id = ? AND finished_at < created_at',
          [id],
        )
        seen += now
        return now > 0 ? `${now} finished before it was created` : undefined
      },
    })
    expectNone(stage, 'finished is after created', steps)
    stage.say(`${seen} in all`)
  },
}

export const decidedCases: Case[] = [
  revokedToken,
  revokedHeld,
  projectPulled,
  eventLeft,
  overdueLeft,
  narrowed,
  pingDisabled,
  late429,
  cancelUnseen,
  redeliverPurged,
  timesTaken,
]
