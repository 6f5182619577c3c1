import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import type { DatabaseProxy } from '../proxy.ts'
import { type Answer, type Client, done } from '../stage/client.ts'
import type { Server } from '../stage/processes.ts'
import {
  APPROVE,
  atMost,
  CREATE_TOKEN,
  CREATE_WEBHOOK,
  createToken,
  PING,
  RECOVER,
  REDELIVER,
  REVOKE,
  type Stage,
  SUBMIT,
  times,
  UPSERT_ORGANISATION,
  UPSERT_PROJECT,
  UPSERT_USER,
  UPSERT_WEBHOOK,
  untilAnswered,
  untilSettled,
} from '../stage/stage.ts'
import { atEachStatement, shown } from '../stage/steps.ts'
import { ALL, type Case, SHARED } from './case.ts'

// Clients never see internal errors, and a repeated mutation is done once.

const ROUNDS = 20

const twoServers = async (stage: Stage): Promise<[Server, Server]> => {
  const first = await stage.server()
  return [first, stage.engine === 'sqlite' ? first : await stage.server()]
}

const twoClients = async (stage: Stage): Promise<[Client, Client]> => {
  const [first, second] = await twoServers(stage)
  return [stage.client(first), stage.client(second)]
}

/** `3 CONFLICT, 1 NOT_FOUND`. */
const codesOf = (answers: Answer[]): string => {
  const refused = Map.groupBy(
    answers.filter(({ code }) => code !== undefined),
    ({ code }) => code,
  )
  return [...refused].map(([code, list]) => `${list.length} ${code}`).join(', ') || 'none'
}

const racedUpserts: Case = {
  name: 'raced-upserts',
  says: 'Two upserts of the same new organisation, project or user at once are both answered',
  engines: ALL,
  async run(stage) {
    const clients = await twoClients(stage)
    const world = await stage.world(clients[0])
    const { organisationId } = world.projects[0]!
    for (const [name, document] of [
      ['organisation', UPSERT_ORGANISATION],
      ['project', UPSERT_PROJECT],
      ['user', UPSERT_USER],
    ] as const) {
      const answers: Answer[] = []
      let others = 0
      for (let n = 0; n < ROUNDS; n++) {
        const id = randomUUID()
        const both = await Promise.all(
          clients.map((client, index) =>
            client(document, { id, organisationId, name: `Name ${index}` }).then(answer => ({ answer, index })),
          ),
        )
        for (const { answer, index } of both) {
          answers.push(answer)
          const row = answer.data && (Object.values(answer.data)[0] as { name: string } | null)
          if (row && row.name !== `Name ${index}`) others += 1
        }
      }
      const failed = answers.filter(({ code }) => code !== undefined)
      stage.expect(
        `an upsert of a new ${name} is answered, with what it wrote`,
        failed.length === 0 && others === 0,
        `${name}: ${codesOf(answers)} of ${answers.length}; ${others} told another's`,
      )
    }
  },
}

const racedWebhooks: Case = {
  name: 'raced-webhooks',
  says:
    'Upserts of one webhook at once are each answered with their own change, and refused for no field that they do ' +
    'not touch',
  engines: ALL,
  async run(stage) {
    const by = stage.engine === 'sqlite' ? undefined : await stage.proxy()
    const first = await stage.server(by && { by, roles: 'api' })
    const servers = [first, by ? await stage.server() : first] as const
    const clients = [stage.client(servers[0]), stage.client(servers[1])] as const
    const world = await stage.world(clients[0])
    const endpoint = await stage.endpoint()
    const { organisationId } = world.projects[0]!
    const limited = await createToken(clients[0], 'limited', ['webhooks', 'read'], [organisationId])
    // A token that sees its own objects but not those of others.
    const asLimited = servers.map(server => stage.client(server, limited))
    const created: Answer[] = []
    for (let n = 0; n < ROUNDS; n++) {
      const id = randomUUID()
      created.push(...(await Promise.all(asLimited.map(client => client(UPSERT_WEBHOOK, { id, url: endpoint.url })))))
    }
    stage.expect(
      'two upserts of the same new webhook are both answered',
      created.every(({ code }) => code === undefined),
      `new: ${codesOf(created)} of ${created.length}`,
    )
    const { id } = await done(clients[0](CREATE_WEBHOOK, { url: endpoint.url }))
    const types = ['project_report_quarterly_submitted', 'project_report_quarterly_approved']
    const changed: Answer[] = []
    let others = 0
    for (let n = 0; n < ROUNDS; n++) {
      const [one, next, disabled] = await Promise.all([
        clients[0](UPSERT_WEBHOOK, { id, events: [types[0]] }),
        clients[1](UPSERT_WEBHOOK, { id, events: [types[1]] }),
        clients[n % 2]!(UPSERT_WEBHOOK, { id, status: 'disabled' }),
        clients[(n + 1) % 2]!(UPSERT_WEBHOOK, { id, organisationIds: [organisationId] }),
      ])
      changed.push(one, next, disabled)
      for (const [index, answer] of [one, next].entries()) {
        const events = answer.data?.upsertWebhook?.events
        if (events && String(events) !== types[index]) others += 1
      }
      const again = await clients[0](UPSERT_WEBHOOK, { id, status: 'active' })
      if (again.code) stage.say(`the return to active answered ${again.code}`)
    }
    stage.expect(
      'no change is refused for what others change',
      changed.every(({ code }) => code === undefined),
      `changed: ${codesOf(changed)} of ${changed.length}`,
    )
    stage.expect('each answer tells its own change', others === 0, `${others} told another's change`)
    if (!by) return
    const madeAtOnce = await atEachStatement(by, {
      prepare: async () => randomUUID() as string,
      act: id => asLimited[0]!(UPSERT_WEBHOOK, { id, url: endpoint.url }),
      meanwhile: id => asLimited[1]!(UPSERT_WEBHOOK, { id, url: endpoint.url }),
      check: async (_id, { acted, happened }) => {
        const codes = codesOf([acted as Answer, happened as Answer])
        return codes === 'none' ? undefined : codes
      },
    })
    stage.expect(
      'two upserts of the same new webhook are both answered (held)',
      madeAtOnce.wrong.length === 0,
      `new, held: ${shown(madeAtOnce)}`,
    )
    const eventsOf = (answer: unknown) => String((answer as Answer).data?.upsertWebhook?.events)
    const changedAtOnce = await atEachStatement(by, {
      prepare: async () => undefined,
      act: () => clients[0](UPSERT_WEBHOOK, { id, events: [types[0]] }),
      meanwhile: () => clients[1](UPSERT_WEBHOOK, { id, events: [types[1]] }),
      check: async (_, { acted, happened }) => {
        const codes = codesOf([acted as Answer, happened as Answer])
        if (codes !== 'none') return codes
        return eventsOf(acted) === types[0] && eventsOf(happened) === types[1] ? undefined : "told another's change"
      },
    })
    stage.expect(
      'each of two changes at once is answered with its own (held)',
      changedAtOnce.wrong.length === 0,
      `changed, held: ${shown(changedAtOnce)}`,
    )
    const disabledAtOnce = await atEachStatement(by, {
      prepare: () => clients[1](UPSERT_WEBHOOK, { id, status: 'active' }),
      act: () => clients[0](UPSERT_WEBHOOK, { id, events: [types[0]] }),
      meanwhile: () => clients[1](UPSERT_WEBHOOK, { id, status: 'disabled' }),
      check: async (_, { acted, happened }) => {
        const codes = codesOf([acted as Answer, happened as Answer])
        return codes === 'none' ? undefined : codes
      },
    })
    stage.expect(
      'a change is not refused for a disable at once (held)',
      disabledAtOnce.wrong.length === 0,
      `disabled, held: ${shown(disabledAtOnce)}`,
    )
  },
}

// Longer than two waits for a lock.
const LOCKED_MS = 23_000

/** Whether a refusal says that it may be tried again, and when. */
const isUnavailable = ({ status, code, headers }: Answer): boolean =>
  status === 503 && code === 'UNAVAILABLE' && headers['retry-after'] !== undefined

const told = (answers: Answer[]): string =>
  answers
    .map(
      ({ status, code, sentAt, answeredAt }) =>
        `${code ?? 'done'} (${status}) after ${((answeredAt - sentAt) / 1000).toFixed(1)} s`,
    )
    .join(', ')

/** A refused submission must have an actionable error, and must not have happened. */
const expectRefusedWell = async (
  stage: Stage,
  given: { name: string; client: Client; submits: { answer: Answer; variables: object }[] },
): Promise<void> => {
  const { name, client, submits } = given
  const answers = submits.map(({ answer }) => answer)
  stage.expect(
    `${name}: done, or UNAVAILABLE with 503 and Retry-After`,
    answers.every(answer => answer.code === undefined || isUnavailable(answer)),
    `${name}: ${told(answers)}`,
  )
  const refused = submits.filter(({ answer }) => answer.code !== undefined)
  const again = await Promise.all(refused.map(({ variables }) => client(SUBMIT, variables)))
  const happened = again.filter(({ code }) => code !== undefined)
  stage.expect(
    `${name}: what was refused was not done`,
    happened.length === 0,
    `${name}: again, ${happened.length} of ${again.length} were refused (${codesOf(again)})`,
  )
}

const quarters = (): (() => string) => {
  let n = 0
  return () => `${5000 + n}-${(n++ % 4) + 1}`
}

const rowLocked: Case = {
  name: 'row-locked',
  says: 'A submit that matches a webhook whose row is locked for 23 s waits, or is UNAVAILABLE; no internal error',
  engines: SHARED,
  async run(stage) {
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const quarter = quarters()
    const { end } = await stage.sql.hold('SELECT * FROM webhooks WHERE id = ? FOR UPDATE', [id])
    const released = wait(LOCKED_MS).then(end)
    const submits = await times(
      6,
      async n => {
        await wait(n * 2_000)
        const variables = { projectId: world.projects[0]!.projectId, quarter: quarter(), submitterId: world.userId }
        return { variables, answer: await client(SUBMIT, variables) }
      },
      6,
    )
    await released
    await expectRefusedWell(stage, { name: 'locked', client, submits })
  },
}

const CHANGES = /^\s*(INSERT|UPDATE|DELETE)/i

const unavailable: Case = {
  name: 'unavailable',
  says: 'While the database cannot be reached or written, a mutation is UNAVAILABLE and not done',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const server = await stage.server({ by })
    const client = stage.client(server)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const quarter = quarters()
    const failing: (() => void)[] = []
    const faults: Record<string, () => void> = {
      'refuses connections': by.refuse,
      'is dark': by.hole,
      'cannot be written': () =>
        failing.push(
          by.fail(CHANGES, {
            errno: 1290,
            sqlState: 'HY000',
            message: 'The MySQL server is running with the --super-read-only option',
          }).end,
        ),
      // With each change too, so that none comes as far as its commit, whose outcome would be unknown.
      'breaks connections': () => {
        const timer = setInterval(by.cut, 20)
        const endWatch = by.watch(text => {
          if (CHANGES.test(text)) by.cut()
        })
        failing.push(() => clearInterval(timer), endWatch)
      },
    }
    for (const [name, begin] of Object.entries(faults)) {
      begin()
      const submits = await times(3, async () => {
        const variables = { projectId: world.projects[0]!.projectId, quarter: quarter(), submitterId: world.userId }
        const answer = await atMost(45_000, client(SUBMIT, variables))
        return {
          variables,
          answer: answer ?? {
            status: 0,
            headers: {},
            data: undefined,
            code: 'NOTHING_FOR_45_S',
            message: undefined,
            sentAt: 0,
            answeredAt: 45_000,
          },
        }
      })
      for (const end of failing.splice(0)) end()
      by.mend()
      await server.untilReady(60_000)
      await expectRefusedWell(stage, { name, client, submits })
    }
  },
}

const walk: Case = {
  name: 'walk-changing',
  says:
    'A walk misses and doubles nothing that stayed as it was, although the last row seen changes what it is sorted ' +
    'by',
  engines: ALL,
  async run(stage) {
    const client = stage.client(await stage.server())
    const world = await stage.world(client)
    const { projectId } = world.projects[0]!
    const count = 40
    const now = Date.now()
    await times(count, async n => {
      const values = [randomUUID(), projectId, `${6000 + n}-1`, '6000-01-01', 'open', now, now]
      await stage.sql.run(
        'INSERT INTO project_reports (id, project_id, quarter, due_date, status, created_at, updated_at) ' +
          'VALUES (?, ?, ?, ?, ?, ?, ?)',
        values,
      )
    })
    const query = `query ($query: MangoQuery!) { projectReports(query: $query) { id status } }`
    /** How often each row was seen, and what changed. */
    const walkAll = async (withValues: boolean) => {
      await stage.sql.run("UPDATE project_reports SET status = 'open' WHERE project_id = ?", [projectId])
      const seen = new Map<string, number>()
      const changed = new Set<string>()
      let last: { id: string; status: string } | undefined
      for (;;) {
        const from = last && { after: last.id, ...(withValues && { afterValues: [last.status] }) }
        const page = await untilAnswered(() =>
          client(query, { query: { selector: { projectId }, sort: ['status'], limit: 10, ...from } }),
        )
        if (page.code) return { code: page.code, missed: count, doubled: 0 }
        const rows = page.data.projectReports as { id: string; status: string }[]
        for (const { id } of rows) seen.set(id, (seen.get(id) ?? 0) + 1)
        last = rows.at(-1)
        if (!last || seen.size > 10 * count) break
        changed.add(last.id)
        await stage.sql.run("UPDATE project_reports SET status = 'submitted' WHERE id = ?", [last.id])
      }
      const same = [...seen].filter(([id]) => !changed.has(id))
      return {
        code: undefined,
        missed: count - new Set([...seen.keys(), ...changed]).size,
        doubled: same.filter(([, n]) => n > 1).length,
      }
    }
    const without = await walkAll(false)
    stage.say(`without afterValues ${without.missed} of ${count} are never seen`)
    const { code, missed, doubled } = await walkAll(true)
    stage.expect(
      'with afterValues each row that stays as it is comes once',
      missed === 0 && doubled === 0,
      code
        ? `afterValues answers ${code}; without it ${without.missed} of ${count} are never seen`
        : `${missed} never seen, ${doubled} twice, of ${count}`,
    )
  },
}

type Repeatable = { document: string; variables: () => object | Promise<object>; done: () => Promise<number> }

/** Mutations, and how often each was done. */
const repeatable = async (stage: Stage, client: Client): Promise<Record<string, Repeatable>> => {
  const world = await stage.world(client)
  const endpoint = await stage.endpoint()
  const { id: webhookId } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  const quarter = quarters()
  await done(world.submit(client))
  await untilSettled(stage)
  const [delivery] = await stage.sql.rows<{ id: string; event_id: string }>(
    "SELECT id, event_id FROM deliveries WHERE event_type <> 'ping' LIMIT 1",
  )
  const count = (statement: string, values: (string | number)[] = []) => stage.sql.number(statement, values)
  const rejected = async (): Promise<object> => {
    await untilSettled(stage)
    await stage.sql.run("UPDATE deliveries SET status = 'rejected' WHERE event_id = ?", [delivery!.event_id])
    return { webhookId, since: '2020-01-01T00:00:00Z' }
  }
  const expired = async (): Promise<object> => {
    await stage.sql.run('UPDATE signing_keys SET active_from = 0')
    return {}
  }
  return {
    submitProjectReport: {
      document: SUBMIT,
      variables: () => ({ projectId: world.projects[0]!.projectId, quarter: quarter(), submitterId: world.userId }),
      done: () => count("SELECT COUNT(*) FROM events WHERE type = 'project_report_quarterly_submitted'"),
    },
    createWebhook: {
      document: CREATE_WEBHOOK,
      variables: () => ({ url: endpoint.url, organisationIds: [world.projects[1]!.organisationId] }),
      done: () => count('SELECT COUNT(*) FROM webhooks'),
    },
    createAccessToken: {
      document: CREATE_TOKEN,
      variables: () => ({ name: 'made once', permissions: ['read'] }),
      done: () => count('SELECT COUNT(*) FROM access_tokens'),
    },
    redeliver: {
      document: REDELIVER,
      variables: () => ({ deliveryId: delivery!.id }),
      done: () => count('SELECT COUNT(*) FROM deliveries WHERE event_id = ?', [delivery!.event_id]),
    },
    pingWebhook: {
      document: PING,
      variables: () => ({ id: webhookId }),
      done: () => count("SELECT COUNT(*) FROM deliveries WHERE event_type = 'ping' AND webhook_id = ?", [webhookId]),
    },
    approveProjectReport: {
      document: APPROVE,
      variables: async () => ({ id: (await done(world.submit(client))).id, approverId: world.userId }),
      done: () => count("SELECT COUNT(*) FROM events WHERE type = 'project_report_quarterly_approved'"),
    },
    recoverDeliveries: {
      document: RECOVER,
      variables: rejected,
      done: () => count('SELECT COUNT(*) FROM deliveries WHERE event_id = ?', [delivery!.event_id]),
    },
    upsertWebhook: {
      document: UPSERT_WEBHOOK,
      variables: () => ({ url: endpoint.url, organisationIds: [world.projects[1]!.organisationId] }),
      done: () => count('SELECT COUNT(*) FROM webhooks'),
    },
    upsertOrganisation: {
      document: UPSERT_ORGANISATION,
      variables: () => ({ name: 'made once' }),
      done: () => count('SELECT COUNT(*) FROM organisations'),
    },
    upsertProject: {
      document: UPSERT_PROJECT,
      variables: () => ({ organisationId: world.projects[0]!.organisationId, name: 'made once' }),
      done: () => count('SELECT COUNT(*) FROM projects'),
    },
    upsertUser: {
      document: UPSERT_USER,
      variables: () => ({ name: 'made once' }),
      done: () => count('SELECT COUNT(*) FROM users'),
    },
    revokeAccessToken: {
      document: REVOKE,
      variables: async () => ({ id: (await createToken(client, 'revoked once', ['read'])).id }),
      done: () => count('SELECT COUNT(*) FROM access_tokens WHERE revoked_at IS NOT NULL'),
    },
    rotateSigningKey: {
      document: 'mutation { rotateSigningKey { kid activeFrom } }',
      variables: expired,
      done: () => count('SELECT COUNT(*) FROM signing_keys'),
    },
  }
}

const keyHeader = () => ({ 'idempotency-key': randomUUID() })

const idempotencyKey: Case = {
  name: 'idempotency-key',
  says: 'A mutation that is sent again under its key is done once, and answered as the first time',
  engines: ALL,
  async run(stage) {
    const clients = await twoClients(stage)
    for (const [name, mutation] of Object.entries(await repeatable(stage, clients[0]))) {
      const headers = keyHeader()
      const variables = await mutation.variables()
      const before = await mutation.done()
      const first = await clients[0](mutation.document, variables, headers)
      const again = await clients[1](mutation.document, variables, headers)
      const times = (await mutation.done()) - before
      const isSame = JSON.stringify(first.data) === JSON.stringify(again.data) && again.code === undefined
      stage.expect(
        `${name}: done once, and answered the same`,
        times === 1 && isSame && again.headers['idempotency-replayed'] === 'true',
        `${name}: done ${times} times, again ${again.code ?? (isSame ? 'the same' : 'another answer')}`,
      )
      const atOnceHeaders = keyHeader()
      const atOnceVariables = await mutation.variables()
      const start = await mutation.done()
      const both = await Promise.all(clients.map(client => client(mutation.document, atOnceVariables, atOnceHeaders)))
      const made = (await mutation.done()) - start
      stage.expect(
        `${name}: twice at once it is done once`,
        made === 1 &&
          both.some(({ code }) => code === undefined) &&
          both.every(({ code }) => code === undefined || code === 'CONFLICT'),
        `${name}: at once done ${made} times, refused: ${codesOf(both)}`,
      )
    }
    const headers = keyHeader()
    await clients[0](UPSERT_USER, { name: 'One' }, headers)
    const other = await clients[0](UPSERT_USER, { name: 'Another' }, headers)
    stage.expect(
      'another request under that key is BAD_USER_INPUT',
      other.code === 'BAD_USER_INPUT',
      `another request: ${other.code ?? 'done'}`,
    )
  },
}

const sentAgain: Case = {
  name: 'sent-again',
  says:
    'A mutation whose process loses its database at any of its statements is done once when it is sent again under ' +
    'its key',
  engines: SHARED,
  async run(stage) {
    const by: DatabaseProxy = await stage.proxy()
    const stopped = stage.client(await stage.server({ by, roles: 'api' }))
    const client = stage.client(await stage.server())
    for (const [name, mutation] of Object.entries(await repeatable(stage, client))) {
      for (const answer of [false, true]) {
        const steps = await atEachStatement(by, {
          answer,
          prepare: async () => {
            const variables = await mutation.variables()
            return { variables, headers: keyHeader(), before: await mutation.done() }
          },
          act: ({ variables, headers }) => stopped(mutation.document, variables, headers),
          meanwhile: async () => by.cut(),
          async check({ variables, headers, before }, { acted }) {
            const last = await answerOf(client, mutation.document, variables, headers)
            const made = (await mutation.done()) - before
            const first = acted as Answer
            if (made !== 1 || last.code !== undefined) {
              return `done ${made} times: ${first.code ?? 'done'}, then ${last.code ?? 'done'}`
            }
            const answers = [...(first.code === undefined ? [first] : []), last]
            answers.push(await client(mutation.document, variables, headers))
            return new Set(answers.map(({ data }) => JSON.stringify(data))).size === 1
              ? undefined
              : 'answered otherwise'
          },
        })
        stage.expect(
          `${name}: done once (cut ${answer ? 'after' : 'before'} the statement)`,
          steps.wrong.length === 0,
          `${name} ${answer ? 'after' : 'before'}: ${shown(steps)}`,
        )
      }
    }
  },
}

const sentAgainKilled: Case = {
  name: 'sent-again-killed',
  says: 'A mutation whose process is killed at any of its statements is done once when it is sent again under its key',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const client = stage.client(await stage.server())
    const { createAccessToken: mutation } = await repeatable(stage, client)
    const { document, variables } = mutation!
    const steps = await atEachStatement(by, {
      prepare: async () => ({
        server: await stage.server({ by, roles: 'api' }),
        headers: keyHeader(),
        before: await mutation!.done(),
      }),
      act: async ({ server, headers }) => stage.client(server)(document, await variables(), headers),
      async meanwhile({ server }) {
        server.signal('SIGKILL')
        await server.ended
      },
      async check({ headers, before }) {
        const again = await answerOf(client, document, await variables(), headers)
        const made = (await mutation!.done()) - before
        return made === 1 && again.code === undefined ? undefined : `done ${made} times, then ${again.code ?? 'done'}`
      },
    })
    stage.expect('done once', steps.wrong.length === 0, shown(steps))
  },
}

/** The final answer under a key: a CONFLICT while the first request runs, whose end must be known soon. */
const answerOf: (...sent: [client: Client, ...Parameters<Client>]) => Promise<Answer> = async (client, ...sent) => {
  let answer = await client(...sent)
  for (let n = 1; n < 20 && answer.code === 'CONFLICT'; n++) {
    await wait(500)
    answer = await client(...sent)
  }
  return answer
}

export const machineryCases: Case[] = [
  racedUpserts,
  racedWebhooks,
  rowLocked,
  unavailable,
  walk,
  idempotencyKey,
  sentAgain,
  sentAgainKilled,
]
