import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { paceSince, slowerBy } from '../../support/pace.ts'
import type { DatabaseProxy } from '../proxy.ts'
import { type Client, done } from '../stage/client.ts'
import type { Endpoint } from '../stage/endpoint.ts'
import { fillHistory, fillQueue } from '../stage/filling.ts'
import type { Server } from '../stage/processes.ts'
import { CREATE_WEBHOOK, percentile, type Stage, times, until, type World } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// Whatever waits delays only itself.

const RATE = 20
const GAP_MS = 2_000
/** Where a machine that is full has gaps without that, they are no more than so many times as long. */
const TIMES = 4

/** Of submissions under way. A server that is slower than the rate would have ever more, whatever is beside it. */
const MOST_UNDER_WAY = 20

/** `heldBack`: how many were not submitted, because so many were under way. */
type Steadily = {
  latencies: number[]
  longestGapMs: number
  submitted: number
  heldBack: number
  refused: string[]
}

/** Submits at a steady rate, independent of the results, and returns how long each took to arrive. */
const steadily = async (
  given: { world: World; client: Client; endpoint: Endpoint; project?: number },
  forMs: number,
  perSecond = RATE,
): Promise<Steadily> => {
  const { world, client, endpoint, project = 0 } = given
  const from = endpoint.arrivals.length
  const startedAt = Date.now()
  const sentAt = new Map<string, number>()
  const underWay = new Set<Promise<void>>()
  const counts = { submitted: 0, heldBack: 0 }
  const refused: string[] = []
  for (let n = 0; Date.now() - startedAt < forMs; n++) {
    await wait(Math.max(0, startedAt + (n * 1000) / perSecond - Date.now()))
    if (underWay.size === MOST_UNDER_WAY) {
      counts.heldBack += 1
      continue
    }
    counts.submitted += 1
    const one: Promise<void> = world.submit(client, project).then(answer => {
      underWay.delete(one)
      if (answer.code === undefined) sentAt.set(answer.data.submitProjectReport.id, answer.answeredAt)
      else refused.push(answer.code)
    })
    underWay.add(one)
  }
  const endedAt = Date.now()
  const arrived = endpoint.arrivals.slice(from).filter(({ at }) => at <= endedAt)
  const moments = [startedAt, ...arrived.map(({ at }) => at), endedAt]
  const longestGapMs = Math.max(...moments.slice(1).map((at, index) => at - moments[index]!))
  await Promise.all(underWay)
  await wait(2_000)
  const firsts = new Map(endpoint.arrivals.toReversed().map(arrival => [arrival.reportId, arrival.at]))
  // One that has not arrived counts with the time so far.
  const now = Date.now()
  const latencies = [...sentAt].map(([id, at]) => Math.max(0, (firsts.get(id) ?? now) - at))
  return { latencies, longestGapMs, ...counts, refused }
}

/** What any machine may hold back in its worst second. */
const HELD_BACK_PART = 0.01

const heldBackPart = ({ submitted, heldBack }: Steadily): number => heldBack / (submitted + heldBack)

/** What seems wrong may be the machine for a moment: then more windows are measured. */
const oneOrSeveral = async <Window>(
  several: number,
  measure: () => Promise<Window>,
  isWrong: (window: Window) => boolean,
): Promise<Window[]> => {
  const windows = [await measure()]
  while (isWrong(windows[0]!) && windows.length < several) windows.push(await measure())
  return windows
}

/** Of one window that one, of several more than half. */
const areMostly = <Window>(windows: Window[], isWrong: (window: Window) => boolean): boolean =>
  windows.filter(isWrong).length > windows.length / 2

/** Goes dark: nothing of it reaches anybody, without any notice. */
const goDark = async (server: Server, by: DatabaseProxy): Promise<void> => {
  by.hole()
  server.signal('SIGKILL')
  await server.ended
}

const darkMutation: Case = {
  name: 'dark-mutation',
  says:
    'A process that goes dark in the middle of a mutation, while another webhook of the same event answers 429, ' +
    'holds up no healthy webhook',
  engines: SHARED,
  // What others ask of the same database server holds up as many as the fault that is looked for.
  needsOwnServer: true,
  async run(stage) {
    // So few places that what waits to be recorded fills them within seconds.
    const other = await stage.server({ env: { TIDINGS_CONCURRENCY: '64' } })
    const client = stage.client(other)
    const world = await stage.world(client)
    const healthy = await stage.endpoint()
    const throttled = await stage.endpoint(() => ({ status: 429, headers: { 'retry-after': '1' } }))
    await done(client(CREATE_WEBHOOK, { url: healthy.url }))
    await done(client(CREATE_WEBHOOK, { url: throttled.url }))
    // Of very few webhooks a planner takes an index that others do not need.
    await times(300, () =>
      stage.sql.run(
        'INSERT INTO webhooks (id, access_token_id, url, status, created_at, updated_at) ' +
          `VALUES (?, ?, 'http://127.0.0.1:9/', 'disabled', 1, 1)`,
        [randomUUID(), stage.admin.id],
      ),
    )
    await stage.sql.run('ANALYZE TABLE webhooks')
    const measure = async () => {
      const by = await stage.proxy()
      const dark = await stage.server({ by, roles: 'api' })
      const before = await steadily({ world, client, endpoint: healthy }, 15_000)
      const mostMs = Math.max(GAP_MS, TIMES * before.longestGapMs)
      const hold = by.hold(/^\s*COMMIT/i)
      const mutation = world.submit(stage.client(dark))
      await hold.caught
      await goDark(dark, by)
      await mutation
      stage.say('a process went dark in the middle of a mutation')
      const found = await steadily({ world, client, endpoint: healthy }, 60_000)
      const { longestGapMs, submitted, heldBack, refused } = found
      const seen =
        `nothing for ${longestGapMs} ms of at most ${mostMs} (${before.longestGapMs} before); ` +
        `${refused.length} of ${submitted} mutations refused ${[...new Set(refused)].join(', ')}; ` +
        `${heldBack} held back by those under way (${before.heldBack} before)`
      stage.say(seen)
      const isSlower = heldBackPart(found) > TIMES * Math.max(HELD_BACK_PART, heldBackPart(before))
      return { isHeldUp: longestGapMs > mostMs || refused.length > 0 || isSlower, seen }
    }
    const isHeldUp = (window: { isHeldUp: boolean }): boolean => window.isHeldUp
    const windows = await oneOrSeveral(3, measure, isHeldUp)
    stage.expect(
      `a healthy webhook that has ${RATE} events a second is never without one for long`,
      !areMostly(windows, isHeldUp),
      windows.map(({ seen }) => seen).join('; '),
    )
  },
}

const darkClaim: Case = {
  name: 'dark-claim',
  says: 'What a process held that went dark in the middle of a claim is delivered within 30 s',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const dark = await stage.server({ by })
    const client = stage.client(dark)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint()
    await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    let isClaiming = false
    const hold = by.hold(text => {
      isClaiming ||= /UPDATE\s+delivery_queue\s+SET\s+lease/i.test(text)
      return isClaiming && /^\s*COMMIT/i.test(text)
    })
    // What a process queues itself it sends without a claim.
    const other = await stage.server({ roles: 'api' })
    await done(world.submit(stage.client(other)))
    await hold.caught
    await goDark(dark, by)
    const darkAt = Date.now()
    const next = await stage.server()
    stage.say('a process went dark in the middle of a claim; another has started')
    await until('it is delivered', () => endpoint.arrivals.length > 0, 90_000)
    const tookMs = endpoint.arrivals[0]!.at - darkAt
    stage.expect('it is delivered within 30 s', tookMs <= 30_000, `delivered ${(tookMs / 1000).toFixed(1)} s after`)
    next.signal('SIGTERM')
  },
}

/** What the slowest take where nothing else runs on the machine. */
const QUIET_P99_MS = 75

/** How much slower than alone processes may be before that makes first attempts later than the machine's noise. */
const SLOWER = 8

/**
 * The part of the time in which a server with nothing beside may have work, waiting for a processor included. The rate
 * is lower where it has more: near the whole of the time it is late by itself, and much later with anything else to do.
 */
const MOST_BUSY = 0.3

/** `slowerBy`: see `slowerBy` in `pace.ts`. `busyPart`: the part of the time in which the server had work. */
type Lateness = Record<'p50' | 'p90' | 'p99' | 'slowerBy' | 'busyPart', number>

/** Whether first attempts are more than twice as late. The machine's own noise and pace do not count. */
const isLater = (together: Lateness, alone: Lateness): boolean => {
  // A busy machine makes the slowest of them late, whatever is beside them.
  const tail = alone.p99 <= QUIET_P99_MS ? 'p99' : 'p90'
  const pace = Math.max(1, together.slowerBy / SLOWER)
  return (['p50', tail] as const).some(part => {
    const noiseMs = part === 'p50' ? 40 : 150
    return together[part] > Math.max(2 * alone[part], pace * noiseMs)
  })
}

type Side = { server: Server; world: World; client: Client; endpoint: Endpoint }

/** A server with a webhook that is well, of one project. */
const openSide = async (stage: Stage): Promise<Side> => {
  const server = await stage.server()
  const client = stage.client(server)
  const world = await stage.world(client)
  const endpoint = await stage.endpoint()
  await done(client(CREATE_WEBHOOK, { url: endpoint.url, projectIds: [world.projects[0]!.projectId] }))
  return { server, client, world, endpoint }
}

/**
 * First attempts of one webhook beside something, and at the same time those of another server and database server,
 * which have nothing beside: what the machine does to all, it does to both. They are at most twice as late.
 */
const beside = async (stage: Stage, side: Side, begin: () => Promise<unknown>) => {
  const apart = await openSide(await stage.apart())
  let perSecond = RATE
  const measure = async (name: string, side: Side, forMs: number): Promise<Lateness> => {
    const [ownPace, serverPace] = [paceSince(process.pid), paceSince(side.server.pid)]
    const { latencies } = await steadily(side, forMs, perSecond)
    const server = serverPace()
    const slower = Number(slowerBy([ownPace(), server]).toFixed(1))
    const busyPart = (server.ran + server.waited) / 1e6 / forMs
    const [p50, p90, p99] = [50, 90, 99].map(part => percentile(latencies, part)) as [number, number, number]
    stage.say(
      `${name}: median ${p50} ms, p90 ${p90} ms, p99 ${p99} ms, of ${latencies.length}; ` +
        `${slower} times as slow as alone, busy for ${Math.round(100 * busyPart)} %`,
    )
    return { p50, p90, p99, slowerBy: slower, busyPart }
  }
  const both = async (forMs: number) => {
    const [together, alone] = await Promise.all([measure('together', side, forMs), measure('apart', apart, forMs)])
    perSecond = Math.min(RATE, perSecond * Math.min(2, MOST_BUSY / alone.busyPart))
    return { together, alone }
  }
  await both(3_000)
  await begin()
  const isLate = ({ together, alone }: Awaited<ReturnType<typeof both>>) => isLater(together, alone)
  const windows = await oneOrSeveral(5, () => both(20_000), isLate)
  const seen = windows.map(
    ({ together, alone }) =>
      `median ${alone.p50} to ${together.p50} ms, p90 ${alone.p90} to ${together.p90} ms, ` +
      `${together.slowerBy} times as slow as alone`,
  )
  stage.expect(
    'the first attempts of another webhook come at most twice as late',
    !areMostly(windows, isLate),
    `${windows.filter(isLate).length} of ${windows.length} windows are later: ${seen.join('; ')}`,
  )
}

/** A webhook of another project than the one that is well, whose endpoint answers 429. */
const addThrottled = async (stage: Stage, { client, world }: Side, retryAfterS: number) => {
  const endpoint = await stage.endpoint(() => ({ status: 429, headers: { 'retry-after': String(retryAfterS) } }))
  const project = world.projects[1]!
  const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url, projectIds: [project.projectId] }))
  return { webhookId: id, project, endpoint }
}

const pending429: Case = {
  name: 'pending-429',
  says:
    'However much (--size, 20,000) is pending for an endpoint that answers 429 with Retry-After, ' +
    'first attempts of another webhook are not late',
  engines: ALL,
  needsOwnServer: true,
  async run(stage) {
    const side = await openSide(stage)
    const { webhookId, project, endpoint } = await addThrottled(stage, side, 2)
    await beside(stage, side, async () => {
      const size = stage.size(20_000)
      await fillQueue(stage.sql, { webhookId, ...project, count: size })
      stage.say(`${size} are pending for an endpoint that answers 429`)
      await until('it answers 429', () => endpoint.arrivals.length > 0)
    })
    stage.say(`the throttled endpoint had ${endpoint.arrivals.length} requests`)
  },
}

const history429: Case = {
  name: 'history-429',
  says:
    'With 1,000,000 deliveries (--size) in the history, an endpoint that answers 429 once a second makes nobody ' +
    'late',
  engines: SHARED,
  needsOwnServer: true,
  async run(stage) {
    const side = await openSide(stage)
    const { webhookId, project, endpoint } = await addThrottled(stage, side, 1)
    const size = stage.size(1_000_000)
    await fillHistory(stage.sql, { webhookId, ...project, count: size })
    stage.say(`${size} deliveries are in the history`)
    // The database has written down what it was given.
    await wait(15_000)
    await beside(stage, side, () => side.world.submitMany(side.client, 20, 1))
    stage.say(`the throttled endpoint had ${endpoint.arrivals.length} requests`)
  },
}

export const waitingCases: Case[] = [darkMutation, darkClaim, pending429, history429]
