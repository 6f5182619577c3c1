import { setTimeout as wait } from 'node:timers/promises'
import { done } from '../stage/client.ts'
import { fillHistory, fillQueue } from '../stage/filling.ts'
import { CREATE_WEBHOOK, PING, RECOVER, REDELIVER, type Stage, times, UPSERT_WEBHOOK, until } from '../stage/stage.ts'
import { type Case, SHARED } from './case.ts'

// The plan of every statement on the way of an event, a claim, a settle and a recovery, over a filled database.

/** A batch, plus the error of a planner's estimate. */
const MOST_ROWS = 2_000
const READS = /^\s*(SELECT|UPDATE|DELETE)\b/i
const HOT = /\b(deliveries|delivery_queue|attempts|events)\b/i

type Step = {
  table: string | null
  type: string | null
  key: string | null
  rows: number | null
  r_rows?: number | null
}

/** The parts of a statement's plan that read more than it is about. */
const tooMany = async ({ engine, sql }: Stage, statement: string): Promise<Step[]> => {
  const among = async (how: string) => {
    const steps = await sql.rows<Step>(`${how} ${statement}`)
    return steps.filter(({ table, rows, r_rows }) => !table?.startsWith('<') && Number(r_rows ?? rows ?? 0) > MOST_ROWS)
  }
  const found = await among('EXPLAIN')
  // MariaDB estimates an index's rows although LIMIT ends the reading: counted as they are read, they are right.
  const isEstimate = found.length > 0 && engine === 'mariadb' && /^\s*SELECT\b.*\bLIMIT\b/is.test(statement)
  return isEstimate ? among('ANALYZE') : found
}

/** A statement without its values: those alike are looked at once. */
const shapeOf = (statement: string): string =>
  statement
    .replaceAll(/'(?:[^'\\]|\\.)*'/g, '?')
    .replaceAll(/\b\d+\b/g, '?')
    .replaceAll(/\?(?:\s*,\s*\?)+/g, '?')
    .replaceAll(/(?:WHEN \? THEN \?\s*)+/g, 'WHEN ? THEN ? ')
    .replaceAll(/\s+/g, ' ')

const plans: Case = {
  name: 'plans',
  says:
    'No statement on the way of an event, a claim, a settle or a recovery reads more rows than it is about (--size ' +
    'of the history, 50,000)',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const server = await stage.server({ by, env: { TIDINGS_RETRY_SCHEDULE: '0.2,0.2' } })
    const client = stage.client(server)
    const world = await stage.world(client)
    const [own, others] = world.projects
    const good = await stage.endpoint()
    const bad = await stage.endpoint((_arrival, before) =>
      before === 0 ? { status: 429, headers: { 'retry-after': '1' } } : { status: 500 },
    )
    const { id } = await done(client(CREATE_WEBHOOK, { url: good.url, projectIds: [own!.projectId] }))
    const { id: badId } = await done(client(CREATE_WEBHOOK, { url: bad.url, projectIds: [own!.projectId] }))
    const { id: fullId } = await done(client(CREATE_WEBHOOK, { url: good.url, projectIds: [others!.projectId] }))
    const size = stage.size(50_000)
    await fillHistory(stage.sql, { webhookId: fullId, ...others!, count: size })
    const tomorrow = Date.now() + 24 * 3_600_000
    await fillQueue(stage.sql, { webhookId: fullId, ...others!, count: Math.ceil(size / 5), dueAt: tomorrow })
    for (const table of ['deliveries', 'delivery_queue', 'attempts', 'events']) {
      await stage.sql.run(`ANALYZE TABLE ${table}`)
    }
    stage.say(`${size} deliveries in the history, ${Math.ceil(size / 5)} not due`)
    const statements = new Map<string, string>()
    const end = by.watch(text => {
      if (READS.test(text) && HOT.test(text)) statements.set(shapeOf(text), text)
    })
    const since = new Date(Date.now() - 60_000).toISOString()
    await world.submitMany(client, 40)
    await until('they arrive', () => good.arrivals.length === 40)
    await times(3, () => done(client(PING, { id })))
    await done(client(REDELIVER, { deliveryId: good.arrivals[0]!.id }))
    await until('retries arrive', () => bad.arrivals.length > 60)
    await done(client(UPSERT_WEBHOOK, { id: badId, status: 'disabled' }))
    await done(client(UPSERT_WEBHOOK, { id: badId, status: 'active' }))
    await done(client(RECOVER, { webhookId: badId, since }))
    await wait(3_000)
    end()
    const wrong: string[] = []
    for (const [shape, statement] of statements) {
      for (const step of await tooMany(stage, statement)) {
        const rows = step.r_rows ?? step.rows
        wrong.push(`${step.table} ${step.type} ${step.key} ${rows} rows: ${shape.slice(0, 160)}`)
      }
    }
    for (const line of wrong) stage.say(line)
    stage.expect(
      'each reads what it is about',
      wrong.length === 0 && statements.size > 0,
      `${wrong.length} of ${statements.size} statements read more${wrong.length > 0 ? `: ${wrong[0]}` : ''}`,
    )
  },
}

export const planCases: Case[] = [plans]
