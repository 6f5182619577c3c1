import { type Database, marks, rows } from '../../server/database/connect.ts'
import type { AttemptRow, DeliveryRow, EventRow } from '../../server/domain/resources.ts'
import type { Arrivals } from './arrivals.ts'
import { actionOf, endpoints, organisationOf, wants } from './endpoints.ts'
import type { Disturbance } from './faults.ts'
import type { LoadResult } from './load.ts'
import { rules, type Timeline, tell, time, waits } from './timeline.ts'
import type { World } from './world.ts'

// The invariants at the end of a run, over the database and the endpoints' log.

/** Each invariant as a sentence, with its violations. */
export type Findings = Map<string, string[]>

export type Figures = Record<string, number | string>

/** What a server process has logged, and how it came to its end if that was not the end it was given. */
export type ServerLog = { server: number; endedAt: number; ended: string | undefined; lines: string[] }

type Given = {
  world: World
  arrivals: Arrivals
  disturbances: Disturbance[]
  scheduleMs: readonly number[]
  load: LoadResult
  servers: ServerLog[]
  /** How many times as long as alone the servers took, for want of a processor. */
  slowerBy: number
}

const PAGE = 1_000

export const checkAll = async (given: Given): Promise<{ findings: Findings; figures: Figures }> => {
  const findings: Findings = new Map()
  const figures: Figures = {}
  given.arrivals.index()
  await checkEvents(given, findings, figures)
  await checkDeliveries(given, findings, figures)
  checkHolds(given, findings)
  await checkOrder(given, findings)
  checkRequests(given, findings)
  checkAnswers(given, findings, figures)
  checkServers(given, findings)
  await checkQueue(given, findings)
  return { findings, figures }
}

const finder = (findings: Findings, sentence: string) => {
  const wrong: string[] = findings.get(sentence) ?? []
  findings.set(sentence, wrong)
  return wrong
}

/** Whether faults, of some kinds or any, lie between two times, including the time of their after-effects. */
const among =
  (disturbances: Disturbance[]): Timeline['disturbances'] =>
  (from, to, ...kinds) =>
    disturbances.filter(
      it =>
        it.from <= to && it.to >= from && (kinds.length === 0 || kinds.includes(it.kind) || it.target === 'database'),
    )

/**
 * Whether the database was away at some moment between two
 * times; a server that was frozen then finds out when it wakes.
 */
const wasAway = (disturbances: Disturbance[], from: number, to: number): boolean =>
  disturbances.some(outage => {
    if (outage.target !== 'database') return false
    const frozen = disturbances.filter(it => it.kind === 'freeze' && it.from <= outage.to && it.to >= outage.from)
    return outage.from <= to && Math.max(outage.to, ...frozen.map(it => it.to)) >= from
  })

/** All rows of a table in the order of a key, by pages. */
async function* pages<Row extends { id: string }>(database: Database, table: string): AsyncGenerator<Row[]> {
  for (let after = ''; ; ) {
    const page = await rows<Row>(database.knex, `SELECT * FROM ${table} WHERE id > ? ORDER BY id LIMIT ${PAGE}`, [
      after,
    ])
    if (page.length === 0) return
    yield page
    after = page.at(-1)!.id
  }
}

const checkEvents = async ({ world, load }: Given, findings: Findings, figures: Figures): Promise<void> => {
  const missing = finder(findings, 'every event has a delivery to every webhook that should have it, and to no other')
  const lost = finder(findings, 'what was answered as done is in the database')
  const half = finder(findings, 'no change is without its event, no event without its change or twice')
  const { database } = world
  const submitted = new Set(load.submitted)
  const approved = new Set(load.approved)
  const seen = new Set<string>()
  let events = 0
  for await (const page of pages<EventRow>(database, 'events')) {
    const deliveries = await rows<{ event_id: string; webhook_id: string }>(
      database.knex,
      `SELECT event_id, webhook_id FROM deliveries WHERE event_id IN (${marks(page)})`,
      page.map(({ id }) => id),
    )
    const reached = Map.groupBy(deliveries, delivery => delivery.event_id)
    for (const event of page) {
      events += 1
      const project = world.projectIds.indexOf(event.project_id!)
      const { projectReport: report } = JSON.parse(event.payload)
      // What is told about webhooks goes to those that ask for it, and none does here.
      if (!report) {
        if (reached.has(event.id)) missing.push(`event ${event.id}, ${event.type}: nobody is to have it`)
        continue
      }
      const what = `${event.type} ${report.id}`
      if (seen.has(what)) half.push(`${what} happened twice`)
      seen.add(what)
      submitted.delete(`${project} ${report.quarter}`)
      if (event.type === 'project_report_quarterly_approved') approved.delete(report.id)
      const should = world.webhookIds
        .filter((_id, index) =>
          wants(endpoints[index]!, { type: event.type, project, organisation: organisationOf(project) }),
        )
        .toSorted()
      const has = (reached.get(event.id) ?? []).map(({ webhook_id }) => webhook_id).toSorted()
      if (should.join() !== has.join())
        missing.push(`event ${event.id}: should reach ${should}, has deliveries to ${has}`)
    }
  }
  for (const one of submitted) lost.push(`submission of ${one}`)
  for (const one of approved) lost.push(`approval of ${one}`)
  type Report = { id: string; status: string; overdue_at: number | null }
  for await (const page of pages<Report>(database, 'project_reports')) {
    for (const { id, status, overdue_at } of page) {
      const has = (type: string) => seen.delete(`project_report_quarterly_${type} ${id}`)
      if (has('submitted') !== (status !== 'open')) half.push(`report ${id} is ${status}`)
      if (has('approved') !== (status === 'approved')) half.push(`report ${id} is ${status}`)
      if (has('overdue') !== (overdue_at !== null)) half.push(`report ${id} is overdue since ${overdue_at}`)
    }
  }
  for (const what of seen) half.push(`${what} has no report`)
  figures.events = events
}

const checkDeliveries = async (given: Given, findings: Findings, figures: Figures): Promise<void> => {
  const { world, arrivals, scheduleMs } = given
  const { database } = world
  const checks = Object.entries(rules).map(([sentence, rule]) => ({ rule, wrong: finder(findings, sentence) }))
  const disturbances = among(given.disturbances)
  const recordedWithinMs = Math.max(RECORDED_MS, (await longestRecording(database, disturbances)) ?? 0)
  const late: number[] = []
  const lateUndisturbed: number[] = []
  const counts = { deliveries: 0, attempts: 0, lost: 0, arrivals: 0, doubled: 0, delivered: 0, rejected: 0, dropped: 0 }
  for await (const page of pages<DeliveryRow>(database, 'deliveries')) {
    const ids = page.map(({ id }) => id)
    const attempts = Map.groupBy(
      await rows<AttemptRow>(
        database.knex,
        `SELECT * FROM attempts WHERE delivery_id IN (${marks(ids)}) ORDER BY delivery_id, number`,
        ids,
      ),
      ({ delivery_id }) => delivery_id,
    )
    const arrived = arrivals.of(ids)
    for (const delivery of page) {
      const timeline: Timeline = {
        delivery,
        attempts: attempts.get(delivery.id) ?? [],
        arrivals: arrived.get(delivery.id) ?? [],
        scheduleMs,
        disturbances,
        recordedWithinMs,
      }
      for (const { rule, wrong } of checks) {
        for (const fault of rule(timeline))
          wrong.push(`delivery ${delivery.id} to ${nameOf(world, delivery)} ${fault} [${tell(timeline)}]`)
      }
      for (const { one, next, waitMs } of waits(timeline)) {
        const lateMs = next.started_at - one.started_at - one.duration_ms! - waitMs
        late.push(lateMs)
        if (disturbances(one.started_at, next.started_at).length === 0) lateUndisturbed.push(lateMs)
      }
      counts.deliveries += 1
      counts.attempts += timeline.attempts.length
      counts.lost += timeline.attempts.filter(({ failure }) => failure === 'lost').length
      counts.arrivals += timeline.arrivals.length
      if (delivery.status in counts) counts[delivery.status as 'delivered'] += 1
      const acknowledgements = timeline.arrivals.filter(
        it => it.isWritten && it.status !== null && it.status >= 200 && it.status < 300,
      )
      if (acknowledgements.length > 1) counts.doubled += 1
    }
  }
  Object.assign(figures, counts)
  figures['from an answer to its record, ms (most)'] = recordedWithinMs
  const tooLate = finder(findings, 'retries were in time while nothing was out of order')
  const worst = quantile(lateUndisturbed, 0.99)
  if (worst !== undefined && worst > LATE_MS * given.slowerBy)
    tooLate.push(`one in a hundred came ${worst} ms late, or later`)
  figures['times as slow as alone'] = Number(given.slowerBy.toFixed(1))
  figures['retries late, ms (p50, p99, most)'] = quantiles(late)
  figures['retries late while nothing was out of order'] = quantiles(lateUndisturbed)
}

/** From an endpoint's answer to its record, on a machine with time to spare. */
const RECORDED_MS = 3_000

/** The longest time that a process took to record a 2XX while the database was there and nothing was frozen. */
const longestRecording = async (
  { knex }: Database,
  disturbances: Timeline['disturbances'],
): Promise<number | undefined> => {
  const slowest = await rows<{ finished_at: number; ms: number }>(
    knex,
    `SELECT d.finished_at, d.finished_at - a.started_at - a.duration_ms AS ms FROM deliveries d
     JOIN attempts a ON a.delivery_id = d.id AND a.number = d.attempt_count
     WHERE d.status = 'delivered' AND a.status_code BETWEEN 200 AND 299
     ORDER BY ms DESC LIMIT 1000`,
  )
  return slowest.find(({ finished_at, ms }) => disturbances(finished_at - ms, finished_at, 'freeze').length === 0)?.ms
}

/** Of servers that need not wait for a processor. Includes the time to catch up after an outage. */
const LATE_MS = 5_000

const quantile = (values: number[], part: number): number | undefined =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))]

const quantiles = (values: number[]): string =>
  `${[0.5, 0.99, 1].map(part => quantile(values, part) ?? '-').join(', ')} of ${values.length}`

const nameOf = (world: World, { webhook_id }: DeliveryRow): string => {
  const index = world.webhookIds.indexOf(webhook_id)
  return `${endpoints[index]?.behaviour} (${index})`
}

/** The time from an answer until every process knows of it, and has sent what it held. */
const TOLD_WITHIN_MS = 1_000

const checkHolds = ({ arrivals, disturbances }: Given, findings: Findings): void => {
  const wrong = finder(findings, 'a webhook that asked for a pause had one')
  for (const [index, { behaviour }] of endpoints.entries()) {
    if (behaviour !== 'throttling') continue
    const all = arrivals.ofEndpoint(index)
    for (const { jti, status, endedAt, arrivedAt, isWritten } of all) {
      if (status !== 429 || !isWritten || endedAt === null) continue
      const action = actionOf(behaviour, jti, 0)
      const heldUntil = endedAt + Number(action.do === 'reply' && action.headers?.['retry-after']) * 1000
      if (among(disturbances)(arrivedAt - 150, heldUntil).length > 0) continue
      const during = all.filter(it => it.arrivedAt > endedAt + TOLD_WITHIN_MS && it.arrivedAt < heldUntil - 50)
      const tooSoon = during.concat(
        all.filter(it => it.jti === jti && it.arrivedAt > endedAt && it.arrivedAt < heldUntil - 50),
      )
      for (const { jti: other, arrivedAt } of tooSoon) {
        wrong.push(
          `${behaviour} (${index}) asked at ${time(endedAt)} for a pause until ${time(heldUntil)} (${jti}), ` +
            `and ${other} came at ${time(arrivedAt)}`,
        )
      }
    }
  }
}

/** A line is read whole: it is one webhook's of one project. */
const checkOrder = async ({ world, arrivals, disturbances }: Given, findings: Findings): Promise<void> => {
  const wrong = finder(
    findings,
    'where a webhook keeps the order of projects, each event came after the end of the last',
  )
  for (const [index, { ordering, behaviour }] of endpoints.entries()) {
    if (ordering === undefined) continue
    const made = await rows<{ id: string; status: string; project_id: string; created_at: number }>(
      world.database.knex,
      `SELECT d.id, d.status, e.project_id, e.created_at FROM deliveries d JOIN events e ON e.id = d.event_id
       WHERE d.webhook_id = ? ORDER BY e.created_at, e.id`,
      [world.webhookIds[index]!],
    )
    for (const line of Map.groupBy(made, row => row.project_id).values()) {
      const arrived = arrivals.of(line.map(({ id }) => id))
      for (const [n, next] of line.slice(1).entries()) {
        const before = line[n]!
        const what = `${behaviour} (${index}): ${next.id}, after ${before.id} in its project,`
        if (next.created_at <= before.created_at) wrong.push(`${what} has no later time`)
        const first = arrived.get(next.id)?.[0]
        if (!first) continue
        const ended = arrived.get(before.id)?.filter(it => it.isWritten && it.endedAt! <= first.arrivedAt) ?? []
        if (ended.length === 0) wrong.push(`${what} came at ${time(first.arrivedAt)}, before the last was answered`)
        const late = arrived.get(before.id)?.find(it => it.arrivedAt > first.arrivedAt)
        // A process that stood still may have held a request that another has made since.
        if (late && among(disturbances)(before.created_at, late.arrivedAt, 'freeze').length === 0) {
          wrong.push(`${what} came at ${time(first.arrivedAt)}, and the last again at ${time(late.arrivedAt)}`)
        }
      }
    }
  }
}

const checkRequests = ({ arrivals }: Given, findings: Findings): void => {
  const wrong = finder(findings, 'every request was made as described, its token valid')
  for (const { endpoint, jti, arrivedAt, wrong: what } of arrivals.wrong()) {
    wrong.push(`${endpoints[endpoint]!.behaviour} (${endpoint}) at ${time(arrivedAt)}, ${jti}: ${what}`)
  }
}

/** The locks of a frozen process can last longer than a wait, and who wakes finds that a wait has taken too long. */
const someoneWasFrozen = (disturbances: Disturbance[], at: number): boolean =>
  disturbances.some(it => it.kind === 'freeze' && it.from <= at && it.to >= at - 2 * WAITED_MS)

/** TiDB frees after this time what a dead process has locked, or a statement that waited in vain for another lock. */
const DEAD_LOCKS_MS = 20_000

const locksAreKept = (disturbances: Disturbance[], at: number): boolean =>
  disturbances.some(it => it.from <= at && it.to >= at - 2 * (DEAD_LOCKS_MS + WAITED_MS))

const checkAnswers = ({ world, load, disturbances }: Given, findings: Findings, figures: Figures): void => {
  const wrong = finder(findings, 'no mutation failed while the database was there and no server stood still')
  const keepsLocks = world.database.dialect.name === 'TiDB'
  for (const { at, tookMs, mutation, code, message } of load.refusals) {
    if (code === 'UNAVAILABLE' && someoneWasFrozen(disturbances, at + tookMs)) continue
    if (code === 'UNAVAILABLE' && keepsLocks && locksAreKept(disturbances, at + tookMs)) continue
    if (!wasAway(disturbances, at, at + tookMs)) wrong.push(`${time(at)} ${mutation.slice(10, 60)}: ${code} ${message}`)
  }
  figures.mutations = load.submitted.size + load.approved.size
  figures.refused = load.refusals.length
  figures.unanswered = load.unanswered
}

const ERROR = 50
/** So long a request may have waited for a database that was away, and then be told so. */
const WAITED_MS = 10_000
const STOPS_WITHIN_MS = 30_000

const checkServers = ({ servers, disturbances }: Given, findings: Findings): void => {
  const ended = finder(findings, 'no server ended by itself')
  const errors = finder(findings, 'no server logged an error while the database was there')
  const alike = new Map<string, string[]>()
  for (const server of servers) {
    // Told to stop, a process that cannot record what it has sent gives up after a while.
    if (server.ended && !wasAway(disturbances, server.endedAt - STOPS_WITHIN_MS, server.endedAt))
      ended.push(server.ended)
    // Waking, it finds that all it waited for has taken too long.
    const wasFrozen = (at: number) =>
      disturbances.some(it => it.target === server.server && it.kind === 'freeze' && it.from <= at && it.to >= at)
    for (const line of server.lines) {
      const entry = parse(line)
      const at = entry ? Date.parse(entry.time) : undefined
      if (entry && (entry.level < ERROR || wasAway(disturbances, at! - WAITED_MS, at!) || wasFrozen(at!))) continue
      const message = entry?.err?.message ?? ''
      if (/Lock wait timeout/.test(message) && someoneWasFrozen(disturbances, at!)) continue
      // mysql2 writes this itself where the server has closed the connection of a process that stood still.
      if (!entry && /packets out of order/.test(line) && disturbances.some(({ kind }) => kind === 'freeze')) continue
      const what = entry ? `${entry.msg}: ${shortened(message)}` : line
      alike.set(what, [...(alike.get(what) ?? []), at === undefined ? '?' : time(at)])
    }
  }
  for (const [what, times] of alike) {
    errors.push(`${times.length} × ${what} (${times[0]} to ${times.at(-1)})`)
  }
}

const shortened = (text: string): string => (text.length > 300 ? `${text.slice(0, 150)} … ${text.slice(-150)}` : text)

type Entry = { level: number; time: string; msg: string; err?: { message: string } }

const parse = (line: string): Entry | undefined => {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}

const checkQueue = async ({ world }: Given, findings: Findings): Promise<void> => {
  const wrong = finder(findings, 'nothing is left in the queue')
  const left = await rows<Record<string, unknown>>(world.database.knex, 'SELECT * FROM delivery_queue LIMIT 20')
  for (const row of left) wrong.push(JSON.stringify(row))
}
