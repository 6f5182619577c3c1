import { setTimeout as wait } from 'node:timers/promises'
import { epochTimeOf } from '../../../server/domain/pull-time.ts'
import { done } from '../stage/client.ts'
import type { Endpoint, Reply } from '../stage/endpoint.ts'
import { fillQueue } from '../stage/filling.ts'
import {
  CREATE_WEBHOOK,
  createToken,
  gate,
  type Stage,
  UPSERT_PROJECT,
  UPSERT_WEBHOOK,
  until,
  untilSettled,
  type World,
} from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// Stop means stop: no request begins more than 1 s after the mutation that ends it was answered, on whichever process
// it waits.

const ANSWER_AFTER_MS = 10_000

/** Servers that share the database: two, or one on SQLite. What waits in one of two is twice as much. */
const serversOf = async (stage: Stage) => {
  const options = { env: { TIDINGS_CONCURRENCY: '128' } }
  const first = await stage.server(options)
  return stage.engine === 'sqlite' ? [first] : [first, await stage.server(options)]
}

/** Of one webhook, 32 are in flight in a process of 128, and as many wait in its memory. */
const EVENTS_A_SERVER = 150
const LEAST_WAITING = 10

/**
 * One in eight is answered soon, the others in 10 s: what is left for an endpoint that answers nothing is given back
 * within half a second, and would not wait in memory.
 */
const slowAnswer = (nth: number): Reply => ({ status: 200, afterMs: nth % 8 === 0 ? 100 : ANSWER_AFTER_MS })

/** Waits until everything that was going to begin has begun, and says how much began too late. */
const expectStopped = async (stage: Stage, endpoint: Endpoint, stoppedAt: number, after: string): Promise<void> => {
  const before = endpoint.arrivals.length
  await wait(ANSWER_AFTER_MS + 3_000)
  const late = endpoint.arrivals.filter(({ at }) => at > stoppedAt + stage.stoppedWithinMs())
  const last = Math.max(0, ...late.map(({ at }) => at - stoppedAt))
  stage.expect(
    `no request begins more than 1 s after ${after}`,
    late.length === 0,
    `${late.length} began later than ${stage.stoppedWithinMs()} ms after` +
      `${late.length > 0 ? `, the last ${last} ms` : ''}; ${before} before`,
  )
}

/**
 * Makes deliveries pending that wait in every process for an endpoint that is slow; comes back 1.5 s after the first
 * arrival, when some wait in memory.
 */
const fill = async (
  stage: Stage,
  given: { endpoint: Endpoint; webhookId: string; project: World['projects'][number]; count: number },
): Promise<void> => {
  const { endpoint, webhookId, project, count } = given
  await fillQueue(stage.sql, { webhookId, ...project, count })
  await until('the first arrives', () => endpoint.arrivals.length > 0)
  await wait(Math.max(0, endpoint.arrivals[0]!.at + 1_500 - Date.now()))
  let waiting = 0
  await until('some wait in memory', async () => {
    const leased = await stage.sql.number('SELECT COUNT(*) FROM delivery_queue WHERE lease IS NOT NULL')
    waiting = leased - endpoint.arrivals.filter(({ answeredAt }) => answeredAt === undefined).length
    return waiting >= LEAST_WAITING
  })
  stage.say(`${endpoint.arrivals.length} requests have begun, ${waiting} more wait in memory`)
}

const disabled: Case = {
  name: 'disabled',
  says: 'Nothing is sent to a webhook more than 1 s after it was disabled',
  engines: ALL,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers.at(-1)!)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint(() => slowAnswer(endpoint.arrivals.length))
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    const count = EVENTS_A_SERVER * servers.length
    await fill(stage, { endpoint, webhookId: id, project: world.projects[0]!, count })
    await done(client(UPSERT_WEBHOOK, { id, status: 'disabled' }))
    await expectStopped(stage, endpoint, Date.now(), 'its webhook was disabled')
  },
}

const urlChanged: Case = {
  name: 'url-changed',
  says: 'Nothing is sent to the old url more than 1 s after a webhook was given another',
  engines: ALL,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers.at(-1)!)
    const world = await stage.world(client)
    const old = await stage.endpoint(() => slowAnswer(old.arrivals.length))
    const next = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: old.url }))
    const count = EVENTS_A_SERVER * servers.length
    await fill(stage, { endpoint: old, webhookId: id, project: world.projects[0]!, count })
    await done(client(UPSERT_WEBHOOK, { id, url: next.url }))
    await expectStopped(stage, old, Date.now(), 'its webhook was given another url')
    await untilSettled(stage)
    const reached = new Set([...old.byId().keys(), ...next.byId().keys()])
    stage.expect(
      'what waited goes to the new url',
      reached.size === count,
      `${reached.size} of ${count} arrived at one`,
    )
  },
}

const heldElsewhere: Case = {
  name: 'held-elsewhere',
  says: 'Nothing is sent to a webhook that another process was told 429 by, until the time that it named',
  engines: SHARED,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers[0]!)
    const world = await stage.world(client)
    let told: number | undefined
    const filled = gate()
    const endpoint = await stage.endpoint(async ({ id }, before) => {
      // One is told to wait, when others wait in the memory of each process.
      if (before === 0 && endpoint.arrivals.length === 50 && told === undefined) {
        await filled.opened
        told = Date.now()
        stage.say(`${id} is answered 429`)
        return { status: 429, headers: { 'retry-after': '20' } }
      }
      return slowAnswer(endpoint.arrivals.length)
    })
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    // What clients take begins at once, and some must be left.
    const count = EVENTS_A_SERVER * servers.length * (stage.isPulled ? 2 : 1)
    await fill(stage, { endpoint, webhookId: id, project: world.projects[0]!, count })
    filled.open()
    await until('one is answered 429', () => told !== undefined)
    let heldUntil = 0
    await until('it is recorded', async () => {
      heldUntil = epochTimeOf(await stage.sql.number('SELECT COALESCE(MAX(held_until), 0) FROM webhooks'))
      return heldUntil > 0
    })
    // No other process can know of it before, and of many answers that clients pass on, a server is told by one.
    const knownAt = Date.now()
    await wait(heldUntil - knownAt)
    const late = endpoint.arrivals.filter(({ at }) => at > knownAt + stage.stoppedWithinMs() && at < heldUntil)
    const before = endpoint.arrivals.filter(({ at }) => at <= knownAt).length
    stage.expect(
      'no request begins from 1 s after the record of the 429 until the time that it named',
      late.length === 0 && before < count,
      `${late.length} began; ${before} of ${count} before the record, ${knownAt - told!} ms after the answer`,
    )
  },
}

const tokenLosesSight: Case = {
  name: 'sight-lost-token',
  says: 'Nothing of an organisation is sent more than 1 s after the token of the webhook sees it no more',
  engines: ALL,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers[0]!)
    const world = await stage.world(client)
    const [lost, kept] = world.projects
    const maker = await createToken(
      client,
      'limited',
      ['webhooks', 'read'],
      [lost!.organisationId, kept!.organisationId],
    )
    const endpoint = await stage.endpoint(() => slowAnswer(endpoint.arrivals.length))
    const { id } = await done(stage.client(servers[0]!, maker)(CREATE_WEBHOOK, { url: endpoint.url }))
    await fill(stage, { endpoint, webhookId: id, project: lost!, count: EVENTS_A_SERVER * servers.length })
    await stage.sql.run('DELETE FROM access_token_organisations WHERE access_token_id = ? AND organisation_id = ?', [
      maker.id,
      lost!.organisationId,
    ])
    await expectStopped(stage, endpoint, Date.now(), 'the token of its webhook lost sight of the organisation')
  },
}

const projectLosesSight: Case = {
  name: 'sight-lost-project',
  says: 'Nothing of a project is sent more than 1 s after it moved to where the token of the webhook does not see',
  engines: ALL,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers[0]!)
    const world = await stage.world(client)
    const [from, to] = world.projects
    const maker = await createToken(client, 'limited', ['webhooks', 'read'], [from!.organisationId])
    const endpoint = await stage.endpoint(() => slowAnswer(endpoint.arrivals.length))
    const { id } = await done(stage.client(servers[0]!, maker)(CREATE_WEBHOOK, { url: endpoint.url }))
    await fill(stage, { endpoint, webhookId: id, project: from!, count: EVENTS_A_SERVER * servers.length })
    const moved = { id: from!.projectId, organisationId: to!.organisationId, name: 'Moved' }
    await done(client(UPSERT_PROJECT, moved))
    await expectStopped(stage, endpoint, Date.now(), 'its project moved out of sight')
  },
}

export const stopCases: Case[] = [disabled, urlChanged, heldElsewhere, tokenLosesSight, projectLosesSight]
