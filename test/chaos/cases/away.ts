import { setTimeout as wait } from 'node:timers/promises'
import type { DatabaseProxy } from '../proxy.ts'
import { done } from '../stage/client.ts'
import type { Server } from '../stage/processes.ts'
import { CREATE_WEBHOOK, UPSERT_WEBHOOK, until, untilSettled } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// A process begins or ends although what it needs is away.

const starting: Case = {
  name: 'starting',
  says: 'A server that starts while its database goes away waits for it, wherever it has come to',
  engines: SHARED,
  async run(stage) {
    // The statements of a start, without a fault.
    const counting = await stage.proxy()
    const texts: string[] = []
    const stopCounting = counting.watch(text => texts.push(text))
    const well = await stage.server({ by: counting })
    stopCounting()
    well.signal('SIGTERM')
    await well.ended
    stage.say(`a start makes ${texts.length} statements`)
    const ended: string[] = []
    // From its first statement to its last, however many there are.
    const steps = Math.min(texts.length, stage.size(12))
    for (const step of Array.from({ length: steps }, (_, index) => 1 + Math.floor((index * texts.length) / steps))) {
      const by = await stage.proxy()
      let n = 0
      const hold = by.hold(() => ++n === step)
      const server = await stage.serverStarting({ by })
      const held = await hold.caught
      by.refuse()
      await wait(2_000)
      by.mend()
      const isReady = await server.untilReady(20_000).then(
        () => true,
        () => false,
      )
      const end = server.hasEnded()
      if (!isReady) ended.push(`${step} (${held.text.slice(0, 60)}): ${end ? `exit ${end.code}` : 'never ready'}`)
      server.signal('SIGKILL')
      await server.ended
      by.close()
    }
    stage.expect(
      'it is ready when the database is back',
      ended.length === 0,
      `${ended.length} of ${steps} starts failed${ended.length > 0 ? `: at statement ${ended.join(', ')}` : ''}`,
    )
  },
}

const SHUTDOWN_MS = 30_000
/** Without a fault the server ends in as much, and all that takes longer is the machine's. */
const UNDISTURBED_MS = 1_500

const terminated: Case = {
  name: 'terminated',
  says: 'SIGTERM under any fault ends a server with 0 within 30 s, and what it had in hand is delivered',
  engines: ALL,
  async run(stage) {
    type Broken = { by: DatabaseProxy | undefined; server: Server; webhookId: string }
    const ends: (() => Promise<void>)[] = []
    const faults: Record<string, (broken: Broken) => unknown> = {
      'no fault': () => {},
      'endpoint does not answer': () => {},
      ...(stage.engine !== 'sqlite' && {
        'database refuses': ({ by }: Broken) => by!.refuse(),
        'database dark': ({ by }: Broken) => by!.hole(),
        'database far away': ({ by }: Broken) => by!.delay(500),
        'database cannot be written': ({ by }: Broken) => {
          by!.fail(/^\s*(INSERT|UPDATE|DELETE)/i, { errno: 1290, sqlState: 'HY000', message: 'read-only' })
        },
        'row locked, and asked to wait': async ({ webhookId }: Broken) => {
          const { end } = await stage.sql.hold('SELECT * FROM webhooks WHERE id = ? FOR UPDATE', [webhookId])
          ends.push(end)
        },
        'row locked': async ({ webhookId }: Broken) => {
          const { end } = await stage.sql.hold('SELECT * FROM webhooks WHERE id = ? FOR UPDATE', [webhookId])
          ends.push(end)
        },
        'stood still': async ({ server }: Broken) => {
          server.signal('SIGSTOP')
          setTimeout(() => server.signal('SIGCONT'), 18_000).unref()
        },
      }),
    }
    let machineMs = 0
    for (const [name, begin] of Object.entries(faults)) {
      const by = stage.engine === 'sqlite' ? undefined : await stage.proxy()
      const server = await stage.server({ ...(by && { by }), env: { TIDINGS_LOG_LEVEL: 'info' } })
      const client = stage.client(server)
      const world = await stage.world(client)
      const isThrottled = name.endsWith('asked to wait')
      const isHanging = name === 'endpoint does not answer'
      const endpoint = await stage.endpoint((_arrival, before) =>
        before === 0 && isHanging
          ? 'hang'
          : before === 0 && isThrottled
            ? { status: 429, headers: { 'retry-after': '1' }, afterMs: 1_000 }
            : { status: 200, afterMs: 1_000 },
      )
      const { id } = await done(
        client(CREATE_WEBHOOK, { url: endpoint.url, projectIds: [world.projects[0]!.projectId] }),
      )
      await world.submitMany(client, 20)
      await until('they arrive', () => endpoint.arrivals.length > 0)
      await begin({ by, server, webhookId: id })
      // One that waits for the database, so that a mutation is under way too.
      const mutation = world.submit(client)
      await wait(200)
      const asked = Date.now()
      server.signal('SIGTERM')
      const { code, signal } = await server.ended
      const tookMs = Date.now() - asked
      if (name === 'no fault') machineMs = Math.max(0, tookMs - UNDISTURBED_MS)
      await mutation
      by?.mend()
      for (const end of ends.splice(0)) await end()
      const next = await stage.server()
      await untilSettled(stage)
      const owed = await stage.sql.number(
        `SELECT COUNT(*) FROM deliveries WHERE webhook_id = ? AND status <> 'delivered'`,
        [id],
      )
      await done(stage.client(next)(UPSERT_WEBHOOK, { id, status: 'disabled' }))
      next.signal('SIGTERM')
      await next.ended
      stage.expect(
        `${name}: it ends with 0 within 30 s`,
        code === 0 && tookMs <= SHUTDOWN_MS + machineMs,
        `${name}: ended with ${code ?? signal} after ${(tookMs / 1000).toFixed(1)} s`,
      )
      stage.expect(
        `${name}: all is delivered by the next`,
        owed === 0 && endpoint.byId().size >= 20,
        `${name}: ${owed} not delivered, ${endpoint.sentAgain().length} sent again after their 200`,
      )
    }
  },
}

export const awayCases: Case[] = [starting, terminated]
