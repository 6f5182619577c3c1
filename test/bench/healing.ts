import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { v7 as uuid } from 'uuid'
import { run } from '../../server/database/connect.ts'
import { NEVER } from '../../server/domain/missed.ts'
import { engines } from '../support/databases.ts'
import { median, quantile, show, table } from './figures.ts'
import { makeDue } from './hanging-webhooks.ts'
import { copyRow, type Row, templateOf } from './seed.ts'
import { startWorld, type World } from './world.ts'

// Measures the latency of others' events while another tenant's webhooks heal themselves: a thousand with dead
// endpoints, half of which hang and half refuse connections, all due for their ping at once, again each second, which
// is an hour's pings each second; and one that is back and gets the events that it missed. In turns with quiet windows
// of the same server.
//
// npm run bench -- healing [--engine mysql] [--dead 1000] [--missed 20000] [--rate 50] [--seconds 10] [--turns 4]
//
// With --missed 0 no endpoint is back.

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    dead: { type: 'string', default: '1000' },
    missed: { type: 'string', default: '20000' },
    rate: { type: 'string', default: '50' },
    seconds: { type: 'string', default: '10' },
    turns: { type: 'string', default: '4' },
  },
})
/** By then a phase has begun, or the one before has ended. */
const BETWEEN_MS = 2_000

type Phase = { name: string; begin(): Promise<() => Promise<string>> }

/** A tenant's dead webhooks, and one that is back. */
const phasesOf = async (world: World): Promise<Phase[]> => {
  const { database } = world.given
  const { knex } = database
  const dead = await makeDue(world, { webhooks: Number(options.dead) + 1, deliveries: 0 })
  const [back, ...others] = dead.webhookIds
  await knex('webhooks').whereIn('id', dead.webhookIds).update({ recovery: 'automatic' })
  for (let from = 0; from < others.length; from += 500) {
    const part = others.slice(from, from + 500)
    await knex('webhooks')
      .whereIn('id', part.slice(0, part.length / 2))
      .update({ url: 'http://127.0.0.1:9/' })
  }
  await knex('webhooks')
    .where({ id: back! })
    .update({ url: dead.url.replace(/hanging$/, 'aside') })
  const now = Date.now()
  for (const id of dead.webhookIds)
    await knex('webhook_recoveries').insert({ webhook_id: id, missed_since: now, began_at: now, due_at: NEVER })
  const quiet = () => run(knex, 'UPDATE webhook_recoveries SET due_at = ?, lease = NULL, answered_at = NULL', [NEVER])
  return [
    { name: 'quiet', begin: async () => async () => '' },
    {
      name: `${others.length} dead endpoints, all pinged again each second`,
      async begin() {
        const due = () =>
          run(
            knex,
            `UPDATE webhook_recoveries SET due_at = ?
             WHERE webhook_id <> ? AND due_at > ? AND (lease IS NULL OR due_at >= ?)`,
            [Date.now(), back!, Date.now(), NEVER],
          )
        await due()
        const timer = setInterval(() => void due().catch(() => {}), 1_000)
        return async () => {
          clearInterval(timer)
          const [found] = await knex('webhook_recoveries').sum({ pings: 'pings' })
          await quiet()
          return `${found!.pings} pings so far`
        }
      },
    },
    {
      name: `one is back, and gets ${options.missed} events`,
      async begin() {
        const template: Row = {
          ...(await templateOf(database, 'events', { type: 'project_report_quarterly_submitted' })),
        }
        const at = Date.now()
        const { organisation_id } = await knex('projects').where({ name: 'Crowd' }).first()
        const project_id = (await knex('projects').where({ name: 'Crowd' }).first()).id
        await copyRow(database, 'events', {
          template: { ...template, organisation_id, project_id, created_at: at },
          count: Number(options.missed),
          change: () => ({ id: uuid() }),
        })
        await run(
          knex,
          `UPDATE webhook_recoveries SET missed_since = ?, began_at = ?, due_at = ?, recovered_at = NULL, queued = 0
           WHERE webhook_id = ?`,
          [at, at, at, back!],
        )
        return async () => {
          const { queued } = await knex('webhook_recoveries').where({ webhook_id: back! }).first()
          return `${queued} queued meanwhile`
        }
      },
    },
  ]
}

const measure = async (world: World): Promise<{ p50: number; p99: number; most: number; missing: number }> => {
  await wait(BETWEEN_MS)
  const publishing = world.publish({ rate: Number(options.rate) })
  await wait(Number(options.seconds) * 1000)
  const { begunToReceived: all, missing } = await publishing()
  return { p50: median(all), p99: quantile(all, 0.99), most: Math.max(...all), missing }
}

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  const world = await startWorld(engine, { env: { TIDINGS_ROLES: 'api,delivery,scheduler' } })
  try {
    const [quiet, ...phases] = await phasesOf(world)
    const troubles = options.missed === '0' ? phases.slice(0, 1) : phases
    const rows: string[][] = [['', 'p50 ms', 'p99 ms', 'most ms', 'missing', '']]
    const found = new Map<string, number[]>()
    await measure(world)
    for (let turn = 0; turn < Number(options.turns); turn++) {
      for (const trouble of troubles) {
        for (const { name, begin } of [quiet!, trouble]) {
          const end = await begin()
          const { p50, p99, most, missing } = await measure(world)
          const told = await end()
          if (name === trouble.name) await world.settled(120_000)
          const of = name === 'quiet' ? `quiet before: ${trouble.name}` : name
          found.set(of, [...(found.get(of) ?? []), p99])
          rows.push([name, show(p50), show(p99), show(most), String(missing), told])
        }
      }
    }
    console.log(`\n${pc.bold(engine)}, ${options.rate} events a second of others`)
    console.log(table(rows))
    for (const { name } of troubles) {
      const ratio = median(found.get(name)!) / median(found.get(`quiet before: ${name}`)!)
      console.log(`${name}: ratio of the medians of p99 ${ratio.toFixed(2)} (wanted: 1.2 or less)`)
    }
  } finally {
    await world.stop()
  }
}
