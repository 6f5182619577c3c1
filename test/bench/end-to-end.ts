import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { fixedWorkMs, median, show, table } from './figures.ts'
import { measure, type Round, type Side, startSide } from './sides.ts'
import { unlessSmallest } from './smallest.ts'
import type { Pace } from './world.ts'

// Measures the cost of an event from its signed mutation over HTTP to the settled delivery: 10 publishers, 100
// endpoints, one event to one endpoint. CPU is that of the server's processes and of the database's; publishers and
// receivers run in processes of their own and are not counted, although they use the machine too. Rounds alternate
// between the engines; medians are printed. CPU time grows on a busy machine: compare two runs by the CPU of the fixed
// work that is measured beside.
//
//   npm run bench -- end-to-end [--engine mysql] [--rounds 3] [--seconds 5] [--in-flight 100] [--rate 100]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '5' },
    'in-flight': { type: 'string', default: '100' },
    rate: { type: 'string', default: '100' },
  },
})
const ROUNDS = Number(options.rounds)
const SECONDS = Number(options.seconds)
const WARM_UP_SECONDS = unlessSmallest(3, 0.3)

const modes: { name: string; pace: Pace; togetherMs: number }[] = [
  { name: `${options['in-flight']} in flight`, pace: { inFlight: Number(options['in-flight']) }, togetherMs: 1.5 },
  { name: `${options.rate} a second`, pace: { rate: Number(options.rate) }, togetherMs: 2.5 },
]

const LINES: [key: string, label: string][] = [
  ['server', 'CPU ms an event, server'],
  ['database', 'CPU ms an event, database'],
  ['together', 'CPU ms an event, together'],
  ['statements', 'statements an event'],
  ['commits', 'commits that wrote, an event'],
  ['logSyncs', 'syncs of the log, an event'],
  ['accepted', 'events a second accepted'],
  ['delivered', 'events a second delivered'],
  ['begunToAcknowledgedP50', 'begun → acknowledged p50 ms'],
  ['begunToAcknowledgedP99', 'begun → acknowledged p99 ms'],
  ['begunToReceivedP50', 'begun → received p50 ms'],
  ['begunToReceivedP99', 'begun → received p99 ms'],
  ['acknowledgedToReceivedP50', 'acknowledged → received p50 ms'],
  ['acknowledgedToReceivedP99', 'acknowledged → received p99 ms'],
  ['fixedWork', 'CPU ms of a fixed work meanwhile'],
  ['notDone', 'refused, unanswered or not received'],
]
const KINDS_SHOWN = 10

const report = (mode: (typeof modes)[number], sides: Side[], rounds: Map<Side, Round[]>): void => {
  const medians = sides.map(side => {
    const all = rounds.get(side)!
    const keys = new Set(all.flatMap(round => Object.keys(round)))
    return Object.fromEntries([...keys].map(key => [key, median(all.map(round => round[key] ?? 0))]))
  })
  const lines = LINES.map(([key, label]) => [
    label,
    ...medians.map(values => {
      const value = values[key]!
      const tooMuch = (key === 'together' && value > mode.togetherMs) || (key === 'notDone' && value > 0)
      return tooMuch ? pc.red(show(value)) : show(value)
    }),
  ])
  const heading = [pc.bold(`${mode.name}, ${SECONDS} s`), ...sides.map(({ engine }) => pc.bold(engine))]
  console.log(`\n${table([heading, ...lines])}`)
  for (const [n, { engine }] of sides.entries()) {
    const kinds = Object.entries(medians[n]!).filter(([key]) => key.startsWith('kind '))
    if (kinds.length === 0) continue
    const most = kinds.toSorted((a, b) => b[1] - a[1]).slice(0, KINDS_SHOWN)
    console.log(`${engine}: ${most.map(([key, count]) => `${key.slice(5)} ${show(count)}`).join(', ')} an event`)
  }
}

const sides: Side[] = []
try {
  for (const engine of engines) if (engine.startsWith(options.engine)) sides.push(await startSide(engine))
  for (const { engine, counters } of sides) {
    const [durable] =
      (await counters?.ask<Record<string, unknown>>(
        'SELECT @@innodb_flush_log_at_trx_commit AS flush_log_at_trx_commit, @@log_bin AS log_bin, ' +
          '@@sync_binlog AS sync_binlog',
      )) ?? []
    if (durable) console.log(`${engine}: ${JSON.stringify(durable)}`)
  }
  for (const { world } of sides) {
    const warming = world.publish({ inFlight: 20 })
    await wait(WARM_UP_SECONDS * 1000)
    await warming()
    for (let n = 0; n < 20; n++) fixedWorkMs()
  }
  for (const mode of modes) {
    const rounds = new Map<Side, Round[]>(sides.map(side => [side, []]))
    for (let n = 0; n < ROUNDS; n++) {
      for (const side of sides) rounds.get(side)!.push(await measure(side, mode.pace, SECONDS))
    }
    report(mode, sides, rounds)
  }
} finally {
  for (const { world, counters } of sides) {
    await counters?.close()
    await world.stop()
  }
}
