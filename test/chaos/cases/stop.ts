import { setTimeout as wait } from 'node:timers/promises'
import { done } from '../stage/client.ts'
import type { Endpoint } from '../stage/endpoint.ts'
import { CREATE_WEBHOOK, createToken, type Stage, UPSERT_PROJECT, UPSERT_WEBHOOK, until } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// Stop means stop: no request begins more than 1 s after the mutation that ends it was answered, on whichever process
// it waits.

const ANSWER_AFTER_MS = 10_000
const STOPPED_WITHIN_MS = 1_000

/** Servers that share the database: two, or one on SQLite. What waits in one of two is twice as much. */
const serversOf = async (stage: Stage) => {
  const options = { env: { TIDINGS_CONCURRENCY: '128' } }
  const first = await stage.server(options)
  return stage.engine === 'sqlite' ? [first] : [first, await stage.server(options)]
}

/** Of one webhook, 32 are in flight in a process of 128, and as many wait in its memory. */
const EVENTS_A_SERVER = 80

/** Waits until everything that was going to begin has begun, and says how much began too late. */
const expectStopped = async (stage: Stage, endpoint: Endpoint, stoppedAt: number, after: string): Promise<void> => {
  const before = endpoint.arrivals.length
  await wait(ANSWER_AFTER_MS + 3_000)
  const late = endpoint.arrivals.filter(({ at }) => at > stoppedAt + STOPPED_WITHIN_MS)
  const last = Math.max(0, ...late.map(({ at }) => at - stoppedAt))
  stage.expect(
    `no request begins more than 1 s after ${after}`,
    late.length === 0,
    `${late.length} began later${late.length > 0 ? `, the last ${last} ms after` : ''}; ${before} before`,
  )
}

/**
 * Events that wait in every process for an endpoint that takes 10 s; the mutation comes 1.5 s after the first arrival.
 */
const fill = async (stage: Stage, given: { endpoint: Endpoint; submit: () => Promise<unknown> }): Promise<void> => {
  await Promise.all([given.submit(), until('the first event arrives', () => given.endpoint.arrivals.length > 0)])
  await wait(Math.max(0, given.endpoint.arrivals[0]!.at + 1_500 - Date.now()))
  stage.say(`${given.endpoint.arrivals.length} requests are being answered`)
}

const disabled: Case = {
  name: 'disabled',
  says: 'Nothing is sent to a webhook more than 1 s after it was disabled',
  engines: ALL,
  async run(stage) {
    const servers = await serversOf(stage)
    const client = stage.client(servers.at(-1)!)
    const world = await stage.world(client)
    const endpoint = await stage.endpoint(() => ({ status: 200, afterMs: ANSWER_AFTER_MS }))
    const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    await fill(stage, { endpoint, submit: () => world.submitMany(client, EVENTS_A_SERVER * servers.length) })
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
    const old = await stage.endpoint(() => ({ status: 200, afterMs: ANSWER_AFTER_MS }))
    const next = await stage.endpoint()
    const { id } = await done(client(CREATE_WEBHOOK, { url: old.url }))
    const count = EVENTS_A_SERVER * servers.length
    await fill(stage, { endpoint: old, submit: () => world.submitMany(client, count) })
    await done(client(UPSERT_WEBHOOK, { id, url: next.url }))
    await expectStopped(stage, old, Date.now(), 'its webhook was given another url')
    await until(
      'nothing is owed',
      async () => (await stage.sql.number('SELECT COUNT(*) FROM delivery_queue')) === 0,
      60_000,
    )
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
    const endpoint = await stage.endpoint(async ({ id }, before) => {
      // The last that arrives is told to wait, when all that there are places for are being answered.
      if (before === 0 && endpoint.arrivals.length === 50 && told === undefined) {
        await wait(1_500)
        told = Date.now()
        stage.say(`${id} is answered 429`)
        return { status: 429, headers: { 'retry-after': '20' } }
      }
      return { status: 200, afterMs: ANSWER_AFTER_MS }
    })
    await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
    await world.submitMany(client, EVENTS_A_SERVER * servers.length)
    await until('one is answered 429', () => told !== undefined)
    await wait(19_000)
    const late = endpoint.arrivals.filter(({ at }) => at > told! + STOPPED_WITHIN_MS && at < told! + 19_000)
    stage.expect(
      'no request begins from 1 s after the 429 until the time that it named',
      late.length === 0,
      `${late.length} began; ${endpoint.arrivals.filter(({ at }) => at <= told!).length} before`,
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
    const endpoint = await stage.endpoint(() => ({ status: 200, afterMs: ANSWER_AFTER_MS }))
    await done(stage.client(servers[0]!, maker)(CREATE_WEBHOOK, { url: endpoint.url }))
    await fill(stage, { endpoint, submit: () => world.submitMany(client, EVENTS_A_SERVER * servers.length) })
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
    const endpoint = await stage.endpoint(() => ({ status: 200, afterMs: ANSWER_AFTER_MS }))
    await done(stage.client(servers[0]!, maker)(CREATE_WEBHOOK, { url: endpoint.url }))
    await fill(stage, { endpoint, submit: () => world.submitMany(client, EVENTS_A_SERVER * servers.length) })
    const moved = { id: from!.projectId, organisationId: to!.organisationId, name: 'Moved' }
    await done(client(UPSERT_PROJECT, moved))
    await expectStopped(stage, endpoint, Date.now(), 'its project moved out of sight')
  },
}

export const stopCases: Case[] = [disabled, urlChanged, heldElsewhere, tokenLosesSight, projectLosesSight]
