import { setTimeout as wait } from 'node:timers/promises'
import { connect, type Database } from '../../../server/database/connect.ts'
import { createLog } from '../../../server/log.ts'
import { runSchedule } from '../../../server/scheduler/scheduler.ts'
import { seeded } from '../random.ts'
import { type Answer, type Client, type Credentials, clientOf, done } from '../stage/client.ts'
import type { Endpoint, Reply } from '../stage/endpoint.ts'
import type { Server } from '../stage/processes.ts'
import {
  APPROVE,
  CREATE_WEBHOOK,
  createToken,
  PING,
  percentile,
  RECOVER,
  REDELIVER,
  REVOKE,
  type Stage,
  times,
  UPSERT_ORGANISATION,
  UPSERT_PROJECT,
  UPSERT_USER,
  UPSERT_WEBHOOK,
  untilSettled,
  type World,
} from '../stage/stage.ts'
import { ALL, type Case } from './case.ts'

// A random state machine: any number of ordinary operations at the same time on all processes, and their invariants.

const WEBHOOKS = 8
const AT_ONCE = 12
const SAMPLE_MS = 500
/** If operations are slow, as many are made as fit into this time. */
const LONGEST_MS = 8 * 60_000
const CLOCKS_MS = 250
const DAY_MS = 24 * 3_600_000
/** Tokens that act beside the one that may do everything: in all, and at a time. */
const ACTORS = 40
const LIVE_ACTORS = 4
/** The final checks need nothing of purged rows. */
const PURGED = "'ping', 'project_report_quarterly_approved'"

/** The invariants, as statements that count violations; each reads one snapshot. */
const ALWAYS: Readonly<Record<string, string>> = {
  'a delivery is pending exactly while it is queued': `
    SELECT (SELECT COUNT(*) FROM deliveries d WHERE d.status = 'pending'
        AND NOT EXISTS (SELECT 1 FROM delivery_queue q WHERE q.delivery_id = d.id))
      + (SELECT COUNT(*) FROM delivery_queue q
        WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = q.delivery_id AND d.status = 'pending'))`,
  'no row is without its event or delivery': `
    SELECT (SELECT COUNT(*) FROM deliveries d WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = d.event_id))
      + (SELECT COUNT(*) FROM attempts a WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = a.delivery_id))
      + (SELECT COUNT(*) FROM delivery_queue q WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.id = q.event_id))`,
  'a delivery has an end exactly when it is not pending': `
    SELECT COUNT(*) FROM deliveries WHERE (status = 'pending') <> (finished_at IS NULL)`,
  'a delivery has a next attempt exactly while it is pending': `
    SELECT COUNT(*) FROM deliveries WHERE (status = 'pending') <> (next_attempt_at IS NOT NULL)`,
  'no delivery is finished before it was created': `
    SELECT COUNT(*) FROM deliveries WHERE finished_at < created_at`,
  'no webhook is stored in the name of a token that was revoked before': `
    SELECT COUNT(*) FROM webhooks w JOIN access_tokens t ON t.id = w.access_token_id
    WHERE w.created_at > t.revoked_at + ${CLOCKS_MS}`,
  'no attempt begins before its delivery was created': `
    SELECT COUNT(*) FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
    WHERE a.started_at < d.created_at - ${CLOCKS_MS}`,
}

const AT_THE_END: Readonly<Record<string, string>> = {
  'attempts are numbered without a gap': `
    SELECT COUNT(*) FROM (SELECT delivery_id FROM attempts GROUP BY delivery_id
      HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)) gaps`,
  'a delivery counts its attempts': `
    SELECT COUNT(*) FROM deliveries d
    WHERE d.attempt_count <> (SELECT COUNT(*) FROM attempts a WHERE a.delivery_id = d.id)`,
  'delivered ends with a 2XX, and nothing else has one': `
    SELECT COUNT(*) FROM deliveries d WHERE (d.status = 'delivered') <> EXISTS (
      SELECT 1 FROM attempts a WHERE a.delivery_id = d.id AND a.status_code BETWEEN 200 AND 299
        AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.delivery_id = d.id))`,
  'rejected ends with a 4XX': `
    SELECT COUNT(*) FROM deliveries d WHERE d.status = 'rejected' AND NOT EXISTS (
      SELECT 1 FROM attempts a WHERE a.delivery_id = d.id AND a.status_code BETWEEN 400 AND 499
        AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.delivery_id = d.id))`,
  'each attempt has begun after the one before had ended': `
    SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.delivery_id = a.delivery_id AND b.number = a.number + 1
    WHERE b.started_at < a.started_at + COALESCE(a.duration_ms, 0) - ${CLOCKS_MS}`,
  'a report has each event once': `
    SELECT COUNT(*) FROM (SELECT payload FROM events WHERE type LIKE 'project_report%'
      GROUP BY type, payload HAVING COUNT(*) > 1) twice`,
  'a report is what its events say': `
    SELECT COUNT(*) FROM project_reports r WHERE r.status <> 'open' AND NOT EXISTS (
      SELECT 1 FROM events e WHERE e.project_id = r.project_id AND e.type = 'project_report_quarterly_submitted'
        AND e.payload LIKE CONCAT('%', r.id, '%'))`,
}

type Done = { what: string; answer: Answer }
type Submit = { projectId: string; reportId: string; sentAt: number; answeredAt: number; by?: Actor }
type Move = { projectId: string; organisationId: string; sentAt: number; answeredAt: number }

/** A token that sees two organisations, what it has done, and when it lost what. */
type Actor = {
  token: Credentials
  organisationIds: string[]
  endpoint: Endpoint
  hasWebhook: boolean
  /** When the last of it was begun that was done. */
  lastDoneSentAt: number
  revokedAt: number
  /** The organisation that it sees no more, and since when. */
  lost: { organisationId: string; at: number } | undefined
}

/** Error codes that a client must never see. */
const isMachinery = ({ code }: Answer): boolean =>
  code === 'INTERNAL_SERVER_ERROR' || code === 'NO_ANSWER' || code === 'NO_CODE' || code === 'UNAVAILABLE'

const replyOf = (part: number): Reply => {
  const afterMs = Math.round(((part * 7_919) % 1) * 40)
  if (part < 0.05) return { status: 500, afterMs }
  if (part < 0.08) return { status: 429, headers: { 'retry-after': '1' }, afterMs }
  if (part < 0.085) return { status: 429, afterMs }
  if (part < 0.1) return { status: 400, afterMs }
  return { status: part < 0.5 ? 200 : 204, afterMs }
}

const races: Case = {
  name: 'races',
  says: 'Random operations (--size, 2,000) at the same time leave everything as if they had come one after another',
  engines: ALL,
  async run(stage) {
    const seed = Date.now() % 1_000_000
    stage.say(`seed ${seed}`)
    const random = seeded(seed)
    const choose = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!
    const servers = [await stage.server()]
    if (stage.engine !== 'sqlite') servers.push(await stage.server(), await stage.server())
    const clients = servers.map(server => stage.client(server))
    const world = await stage.world(clients[0]!)
    const endpoints = await Promise.all(
      Array.from({ length: 2 * WEBHOOKS }, () => stage.endpoint(() => replyOf(random()))),
    )
    const webhookIds = await times(
      WEBHOOKS,
      async n => (await done(clients[0]!(CREATE_WEBHOOK, { url: endpoints[2 * n]!.url }))).id,
      1,
    )
    const moves: Move[] = world.projects.map(project => ({ ...project, sentAt: 0, answeredAt: 0 }))
    const submits: Submit[] = []
    const history: Done[] = []
    const actors: Actor[] = []
    const database = await connect(stage.databaseUrl, { poolSize: 2 })
    stage.after(database.close)
    const given = { stage, world, endpoints, webhookIds, moves, submits, actors, database, servers, choose, random }
    const operations = operationsOf(given)
    const since = Date.now()

    const offended = new Map<string, number>()
    let isOver = false
    const sampling = (async () => {
      while (!isOver) {
        for (const [sentence, statement] of Object.entries(ALWAYS)) {
          const count = await stage.sql.number(statement)
          if (count > 0) offended.set(sentence, Math.max(count, offended.get(sentence) ?? 0))
        }
        await wait(SAMPLE_MS)
      }
    })()
    const count = stage.size(2_000)
    let made = 0
    await times(
      count,
      async n => {
        if (Date.now() > since + LONGEST_MS) return
        made += 1
        const [what, operate] = choose(operations)
        const answer = await operate(choose(clients))
        if (answer) history.push({ what, answer })
        if (n > 0 && n % 1_000 === 0) stage.say(`${n} operations`)
      },
      AT_ONCE,
    )
    stage.say(`${made} operations in ${Math.round((Date.now() - since) / 1000)} s`)
    await untilSettled(stage)
    await wait(1_500)
    isOver = true
    await sampling

    for (const [sentence, statement] of Object.entries(ALWAYS)) {
      const now = await stage.sql.number(statement)
      const most = Math.max(now, offended.get(sentence) ?? 0)
      stage.expect(sentence, most === 0, most === 0 ? 'always' : `not: ${sentence}: ${now} at the end, ${most} at most`)
    }
    for (const [sentence, statement] of Object.entries(AT_THE_END)) {
      const wrong = await stage.sql.number(statement)
      stage.expect(sentence, wrong === 0, wrong === 0 ? 'all' : `not: ${sentence}: ${wrong}`)
    }
    await expectTruth(stage, [...endpoints, ...actors.map(({ endpoint }) => endpoint)])
    await expectHome(stage, submits, moves)
    await expectNothingOfRevoked(stage, actors, submits)
    await expectNothingUnseen(stage, actors)
    expectNoMachinery(stage, history)
  },
}

/** The operations; repetition is their weight. */
const operationsOf = (given: {
  stage: Stage
  world: World
  endpoints: Endpoint[]
  webhookIds: string[]
  moves: Move[]
  submits: Submit[]
  actors: Actor[]
  database: Database
  servers: Server[]
  choose: <T>(list: readonly T[]) => T
  random: () => number
}) => {
  const { stage, world, endpoints, webhookIds, moves, submits, actors, choose, random } = given
  const approvable: string[] = []
  /** Pings under way. */
  const pinging = new Set<{ sentAt: number }>()
  type Operate = (client: Client) => Promise<Answer | undefined>
  const upsert = (client: Client, change: object) => client(UPSERT_WEBHOOK, { id: choose(webhookIds), ...change })
  const submit = async (client: Client, by?: Actor): Promise<Answer> => {
    const project = Math.floor(random() * world.projects.length)
    const answer = await world.submit(client, project)
    const reportId = answer.data?.submitProjectReport?.id
    if (reportId) {
      const { sentAt, answeredAt } = answer
      submits.push({
        ...{ projectId: world.projects[project]!.projectId, reportId, sentAt, answeredAt },
        ...(by && { by }),
      })
      approvable.push(reportId)
    }
    return answer
  }
  const live = () => actors.filter(({ revokedAt }) => revokedAt === Number.POSITIVE_INFINITY)
  const operations: [name: string, weight: number, operate: Operate][] = [
    ['submit', 40, client => submit(client)],
    [
      'token',
      1,
      async client => {
        if (actors.length >= ACTORS || live().length >= LIVE_ACTORS) return undefined
        const organisationIds = [...new Set([choose(world.projects), choose(world.projects)])].map(
          project => project.organisationId,
        )
        const endpoint = await stage.endpoint(() => replyOf(random()))
        const token = await createToken(client, 'an actor', ['webhooks', 'reports'], organisationIds)
        actors.push({
          ...{ token, organisationIds, endpoint, hasWebhook: false },
          ...{ lastDoneSentAt: 0, revokedAt: Number.POSITIVE_INFINITY, lost: undefined },
        })
        return undefined
      },
    ],
    [
      'act',
      8,
      async () => {
        if (actors.length === 0) return undefined
        const actor = random() < 0.8 && live().length > 0 ? choose(live()) : choose(actors)
        const client = clientOf(choose(given.servers).url, actor.token)
        const makes = !actor.hasWebhook
        actor.hasWebhook = true
        const answer = makes ? await client(CREATE_WEBHOOK, { url: actor.endpoint.url }) : await submit(client, actor)
        if (answer.code === undefined) actor.lastDoneSentAt = Math.max(actor.lastDoneSentAt, answer.sentAt)
        return answer
      },
    ],
    [
      'revoke',
      1,
      async client => {
        if (live().length < LIVE_ACTORS) return undefined
        const actor = choose(live())
        const answer = await client(REVOKE, { id: actor.token.id })
        if (answer.code === undefined) actor.revokedAt = Math.min(actor.revokedAt, answer.answeredAt)
        return answer
      },
    ],
    [
      'narrow',
      1,
      async () => {
        const actor = live().find(({ lost, organisationIds }) => lost === undefined && organisationIds.length > 1)
        if (!actor) return undefined
        const [organisationId] = actor.organisationIds
        actor.lost = { organisationId: organisationId!, at: Number.POSITIVE_INFINITY }
        const values = [actor.token.id, organisationId!]
        await stage.sql.run(
          'DELETE FROM access_token_organisations WHERE access_token_id = ? AND organisation_id = ?',
          values,
        )
        actor.lost.at = Date.now()
        return undefined
      },
    ],
    [
      'purge',
      1,
      async () => {
        await stage.sql.run(`UPDATE events SET created_at = ? WHERE type IN (${PURGED}) AND created_at < ?`, [
          Date.now() - 2 * DAY_MS,
          // Nothing under way is a day old.
          Math.min(Date.now() - 2_000, ...[...pinging].map(({ sentAt }) => sentAt - CLOCKS_MS)),
        ])
        const { database } = given
        const clock = { now: () => Date.now() }
        const told = { log: createLog('silent'), onEvents: () => {} }
        await runSchedule({ database, clock, ...told, reportDueDays: 30, retentionDays: 1 })
        return undefined
      },
    ],
    [
      'approve',
      12,
      async client => {
        const id = approvable.pop()
        return id ? client(APPROVE, { id, approverId: world.userId }) : undefined
      },
    ],
    [
      'ping',
      8,
      async client => {
        const ping = { sentAt: Date.now() }
        pinging.add(ping)
        const answer = await client(PING, { id: choose(webhookIds) })
        pinging.delete(ping)
        return answer
      },
    ],
    ['disable', 6, client => upsert(client, { status: 'disabled' })],
    ['enable', 9, client => upsert(client, { status: 'active' })],
    ['url', 4, client => upsert(client, { url: choose(endpoints).url })],
    ['events', 3, client => upsert(client, { events: choose([[], ['project_report_quarterly_submitted']]) })],
    [
      'organisations',
      4,
      client => upsert(client, { organisationIds: choose([[], [choose(world.projects).organisationId]]) }),
    ],
    [
      'move',
      3,
      async client => {
        const { projectId } = choose(world.projects)
        const { organisationId } = choose(world.projects)
        const move: Move = { projectId, organisationId, sentAt: Date.now(), answeredAt: Number.POSITIVE_INFINITY }
        moves.push(move)
        const answer = await client(UPSERT_PROJECT, { id: projectId, organisationId, name: 'Moved' })
        move.answeredAt = Date.now()
        return answer
      },
    ],
    [
      'redeliver',
      5,
      async client => {
        const ids = endpoints.flatMap(({ arrivals }) => arrivals.at(-1)?.id ?? [])
        return ids.length > 0 ? client(REDELIVER, { deliveryId: choose(ids) }) : undefined
      },
    ],
    [
      'recover',
      3,
      client => client(RECOVER, { webhookId: choose(webhookIds), since: new Date(Date.now() - 5_000).toISOString() }),
    ],
    [
      'organisation',
      1,
      client => client(UPSERT_ORGANISATION, { id: choose(world.projects).organisationId, name: 'Renamed' }),
    ],
    ['user', 1, client => client(UPSERT_USER, { id: world.userId, name: choose(['Ada', 'Bo']) })],
  ]
  stage.say(`${operations.length} kinds of operations on ${webhookIds.length} webhooks`)
  return operations.flatMap(([name, weight, operate]) => Array.from({ length: weight }, () => [name, operate] as const))
}

/**
 * An operation waits 10 s for a lock that others have before it, and is then UNAVAILABLE: where the machine is so full
 * that one in ten takes more than a second, one in a hundred may be.
 */
const expectNoMachinery = (stage: Stage, history: Done[]): void => {
  const slowMs = percentile(
    history.map(({ answer }) => answer.answeredAt - answer.sentAt),
    90,
  )
  const mostLate = slowMs > 1_000 ? Math.ceil(history.length / 100) : 0
  const machinery = history.filter(({ answer }) => isMachinery(answer))
  const late = machinery.filter(({ answer }) => answer.code === 'UNAVAILABLE')
  const kinds = Map.groupBy(machinery, ({ what, answer }) => `${what} ${answer.code}`)
  stage.expect(
    'no client sees the machinery',
    late.length === machinery.length && late.length <= mostLate,
    `${[...kinds].map(([what, list]) => `${list.length} × ${what}`).join(', ') || 'none'} ` +
      `of ${history.length} answers, one in ten after ${slowMs} ms`,
  )
}

/** What endpoints saw is what the log says. */
const expectTruth = async (stage: Stage, endpoints: Endpoint[]): Promise<void> => {
  const arrivals = endpoints.flatMap(endpoint => [...endpoint.arrivals, ...endpoint.pings])
  const byId = Map.groupBy(arrivals, ({ id }) => id)
  const deliveries = await stage.sql.rows<{ id: string; status: string; finished_at: number | null }>(
    'SELECT id, status, finished_at FROM deliveries',
  )
  const attempts = Map.groupBy(
    await stage.sql.rows<{ delivery_id: string; status_code: number | null }>(
      'SELECT delivery_id, status_code FROM attempts',
    ),
    ({ delivery_id }) => delivery_id,
  )
  let latestMs = Number.NEGATIVE_INFINITY
  let unlogged = 0
  let untrue = 0
  for (const { id, finished_at } of deliveries) {
    const seen = byId.get(id) ?? []
    const logged = attempts.get(id) ?? []
    if (finished_at !== null) for (const { at } of seen) latestMs = Math.max(latestMs, at - finished_at)
    unlogged += Math.max(0, seen.length - logged.length)
    const codes = (list: (number | null | undefined)[]) => list.filter(Boolean).toSorted().join()
    if (codes(seen.map(({ status }) => status)) !== codes(logged.map(({ status_code }) => status_code))) untrue += 1
  }
  stage.expect(
    'nothing is sent more than 1 s after its end',
    latestMs <= stage.stoppedWithinMs(),
    `${arrivals.length} sent, the last ${latestMs} ms after its end; ${stage.stoppedWithinMs()} may be`,
  )
  stage.expect('each request has its row in the log', unlogged === 0, `${unlogged} of ${arrivals.length} without a row`)
  stage.expect(
    'the log says what endpoints answered',
    untrue === 0,
    `${untrue} of ${deliveries.length} deliveries with another answer`,
  )
  const again = endpoints.reduce((sum, endpoint) => sum + endpoint.sentAgain().length, 0)
  stage.expect('nothing is sent again after its 2XX', again === 0, `${again} sent again after their 2XX`)
}

/** An event belongs to the organisation that its project was in at some moment of its submit. */
const expectHome = async (stage: Stage, submits: Submit[], moves: Move[]): Promise<void> => {
  const events = await stage.sql.rows<{ payload: string; organisation_id: string }>(
    "SELECT payload, organisation_id FROM events WHERE type = 'project_report_quarterly_submitted'",
  )
  const homes = new Map(
    events.map(event => [JSON.parse(event.payload).projectReport.id as string, event.organisation_id]),
  )
  let elsewhere = 0
  for (const submit of submits) {
    const own = moves.filter(({ projectId }) => projectId === submit.projectId)
    const possible = own.filter(
      move =>
        move.sentAt <= submit.answeredAt &&
        !own.some(later => later.sentAt >= move.answeredAt && later !== move && later.answeredAt <= submit.sentAt),
    )
    if (!possible.some(({ organisationId }) => organisationId === homes.get(submit.reportId))) elsewhere += 1
  }
  stage.expect(
    'an event belongs to the organisation that its project was in',
    elsewhere === 0,
    `${elsewhere} of ${submits.length} events in an organisation that the project was not in`,
  )
}

const expectNothingOfRevoked = async (stage: Stage, actors: Actor[], submits: Submit[]): Promise<void> => {
  const revoked = actors.filter(({ revokedAt }) => revokedAt !== Number.POSITIVE_INFINITY)
  const events = await stage.sql.rows<{ payload: string; created_at: number }>(
    "SELECT payload, created_at FROM events WHERE type = 'project_report_quarterly_submitted'",
  )
  const times = new Map(events.map(event => [JSON.parse(event.payload).projectReport.id as string, event.created_at]))
  const late = submits.filter(({ by, reportId }) => by && (times.get(reportId) ?? 0) > by.revokedAt + CLOCKS_MS)
  const begun = revoked.filter(({ lastDoneSentAt, revokedAt }) => lastDoneSentAt > revokedAt)
  stage.expect(
    'nothing is done in the name of a token after its revocation was acknowledged',
    late.length === 0 && begun.length === 0,
    `${late.length + begun.length} by ${revoked.length} tokens that were revoked`,
  )
}

/** Of an organisation that a token sees no more, nothing is sent to what it has made. */
const expectNothingUnseen = async (stage: Stage, actors: Actor[]): Promise<void> => {
  const narrowed = actors.filter(({ lost }) => lost !== undefined)
  const events = new Map(
    (
      await stage.sql.rows<{ id: string; organisation_id: string | null }>(
        'SELECT d.id, e.organisation_id FROM deliveries d JOIN events e ON e.id = d.event_id',
      )
    ).map(({ id, organisation_id }) => [id, organisation_id]),
  )
  let unseen = 0
  for (const { lost, endpoint } of narrowed) {
    const { organisationId, at: lostAt } = lost!
    unseen += endpoint.arrivals.filter(
      ({ id, at }) => at > lostAt + stage.stoppedWithinMs() && events.get(id) === organisationId,
    ).length
  }
  stage.expect(
    'nothing is sent more than 1 s after the token of its webhook sees it no more',
    unseen === 0,
    `${unseen} to ${narrowed.length} that see less`,
  )
}

export const raceCases: Case[] = [races]
