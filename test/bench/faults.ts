import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { type DatabaseProxy, startProxy } from '../chaos/proxy.ts'
import { seeded } from '../chaos/random.ts'
import { type Server, startServer } from '../chaos/stage/processes.ts'
import { masterKey } from '../delivery/server-process.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject } from '../support/server.ts'
import { addWebhooks } from '../support/webhooks.ts'
import { createClient } from './client.ts'
import { ascending, quantile } from './figures.ts'

// Mutations done of those that are offered to three processes while these are killed, their machines' clocks jump, and
// their ways to the database break, each at a moment that the seed chooses. Each mutation is offered once, to one
// process after the other; where nobody listens, to the next, as a proxy does. A killed process is started again at
// once.
//
//   npm run bench -- faults [--seed 1] [--seconds 90] [--rate 8] [--kills 17] [--jumps 12] [--cuts 5] [--processes 3]

const { values: options } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '90' },
    rate: { type: 'string', default: '8' },
    kills: { type: 'string', default: '17' },
    jumps: { type: 'string', default: '12' },
    cuts: { type: 'string', default: '5' },
    processes: { type: 'string', default: '3' },
  },
})
const SECONDS = Number(options.seconds)
const RATE = Number(options.rate)
const ANSWER_MS = 12_000
const HALF_AN_HOUR_MS = 1_800_000
const NETWORK_FAULT_MS = 5_000
const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

type Slot = { proxy: DatabaseProxy; clock: string; server: Server | undefined; startsMs: number[] }

const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-faults-'))
const random = seeded(Number(options.seed))

const begin = async (slot: Slot): Promise<void> => {
  const at = performance.now()
  const server = await startServer({
    TIDINGS_DATABASE_URL: slot.proxy.url,
    TIDINGS_MASTER_KEY: masterKey,
    TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8',
    TIDINGS_RATE_LIMIT: '0',
    TIDINGS_LOG_LEVEL: 'error',
    NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import ${new URL('jumping-clock.ts', import.meta.url).href}`,
    CLOCK_FILE: slot.clock,
  })
  slot.server = server
  await server.untilReady(120_000).then(
    () => slot.startsMs.push(performance.now() - at),
    () => {},
  )
}

/** The faults in the order of their times. */
const plan = (slots: Slot[]): { atMs: number; happen: () => void }[] => {
  const anySlot = () => slots[Math.floor(random() * slots.length)]!
  const times = (count: string, happen: (slot: Slot) => void) =>
    Array.from({ length: Number(count) }, () => {
      const [atMs, slot] = [random() * SECONDS * 1000, anySlot()]
      return { atMs, happen: () => happen(slot) }
    })
  return [
    ...times(options.kills, slot => {
      slot.server?.signal('SIGKILL')
      void begin(slot)
    }),
    ...times(options.jumps, slot => writeFileSync(slot.clock, String((random() - 0.5) * 2 * HALF_AN_HOUR_MS))),
    ...times(options.cuts, slot => {
      if (random() < 0.5) slot.proxy.refuse()
      else slot.proxy.hole()
      setTimeout(() => slot.proxy.mend(), NETWORK_FAULT_MS)
    }),
  ].toSorted((a, b) => a.atMs - b.atMs)
}

const measure = async (engine: string): Promise<void> => {
  const given = await migratedDatabase(engine)
  const { database } = given
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const admin = await database.transaction(trx =>
    createAccessToken(trx, sealer, { name: 'bench', permissions: ['admin'] }, Date.now()),
  )
  const { projectId, userId } = await addProject(database)
  const receiver = await startReceiver()
  await addWebhooks(database.knex, [{ accessTokenId: admin.id, url: receiver.url }])
  const slots: Slot[] = []
  for (let n = 0; n < Number(options.processes); n++) {
    const clock = path.join(folder, `clock-${n}`)
    writeFileSync(clock, '0')
    slots.push({ proxy: await startProxy(given.url), clock, server: undefined, startsMs: [] })
  }
  await Promise.all(slots.map(begin))
  const client = createClient({ connections: 64 })
  const results: Record<string, number> = {}
  const doneAt: number[] = []
  const submit = async (n: number): Promise<string> => {
    const variables = { projectId, quarter: `${3000 + (n >> 2)}-${(n % 4) + 1}`, submitterId: userId }
    for (let k = 0; k < slots.length; k++) {
      const { server } = slots[(n + k) % slots.length]!
      const sent = client.send(server!.url, admin, SUBMIT, variables)
      const answer = await Promise.race([sent, wait(ANSWER_MS, undefined, { ref: false })]).catch(
        error => error as Error,
      )
      if (answer === undefined) return 'no answer in 12 s'
      if (!(answer instanceof Error)) return answer.row ? 'done' : `${answer.status} ${answer.code}`
      const { code } = answer as { code?: string }
      if (code !== 'ECONNREFUSED') return `connection broken (${code})`
    }
    return 'nobody listens'
  }
  const at = Date.now()
  for (const { atMs, happen } of plan(slots)) setTimeout(happen, atMs)
  const offered: Promise<void>[] = []
  for (let n = 0; n < SECONDS * RATE; n++) {
    await wait(Math.max(0, at + (n * 1000) / RATE - Date.now()))
    offered.push(
      submit(n).then(result => {
        results[result] = (results[result] ?? 0) + 1
        if (result === 'done') doneAt.push(Date.now() - at)
      }),
    )
  }
  await Promise.all(offered)
  const sorted = ascending([0, ...doneAt, SECONDS * 1000])
  const longestMs = Math.max(...sorted.map((ms, n) => ms - (sorted[n - 1] ?? 0)))
  const startsMs = slots.flatMap(slot => slot.startsMs)
  console.log(`${engine}, seed ${options.seed}: ${results.done ?? 0} of ${offered.length} done`)
  console.log(
    `  ${Object.entries(results)
      .map(([what, count]) => `${what} ${count}`)
      .join(', ')}`,
  )
  console.log(`  longest time without one ${(longestMs / 1000).toFixed(1)} s`)
  console.log(
    `  ${startsMs.length} starts, median ${(quantile(startsMs, 0.5) / 1000).toFixed(1)} s, ` +
      `longest ${(Math.max(...startsMs) / 1000).toFixed(1)} s`,
  )
  for (const { server, proxy } of slots) {
    server?.signal('SIGKILL')
    proxy.close()
  }
  await receiver.close()
  await client.close()
  await given.drop()
}

try {
  for (const engine of engines) if (engine !== 'sqlite') await measure(engine)
} finally {
  rmSync(folder, { recursive: true, force: true })
}
process.exit()
