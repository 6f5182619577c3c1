import { setTimeout as wait } from 'node:timers/promises'
import type { DatabaseProxy } from '../proxy.ts'
import { done } from '../stage/client.ts'
import { ANSWER } from '../stage/endpoint.ts'
import type { Server } from '../stage/processes.ts'
import { CREATE_WEBHOOK, gate, type Stage, UPSERT_WEBHOOK, until, untilSettled } from '../stage/stage.ts'
import { ALL, type Case, SHARED } from './case.ts'

// A received answer is recorded unchanged, once, however long recording takes.

const UNWRITABLE_MS = 6_000
const STALLED_MS = 18_000
const EVENTS = 40
const STALLED_EVENTS = 40

/** Deliveries sent again after their 200, and their log. */
const expectBelieved = async (stage: Stage, endpoint: { sentAgain(): unknown[] }, count: number): Promise<void> => {
  const again = endpoint.sentAgain().length
  stage.expect(
    'nothing is sent again after its 200',
    again === 0,
    `${again} of ${count} were sent again after their 200`,
  )
  const logged = await stage.sql.number('SELECT COUNT(*) FROM attempts WHERE status_code = 200 AND response = ?', [
    ANSWER,
  ])
  const others = await stage.sql.rows<{ what: string; count: number }>(
    `SELECT COALESCE(failure, CONCAT(status_code, ' without its answer')) AS what, COUNT(*) AS count FROM attempts
     WHERE response IS NULL OR response <> ? GROUP BY what`,
    [ANSWER],
  )
  // The ping of the registration is one of them.
  stage.expect(
    'each attempt is logged with the answer that came',
    logged === count + 1 && others.length === 0,
    `${logged - 1} of ${count} have their answer${others.map(it => `, ${it.count} ${it.what}`).join('')}`,
  )
  const ends = await stage.sql.rows<{ status: string; count: number }>(
    "SELECT status, COUNT(*) AS count FROM deliveries WHERE event_type <> 'ping' GROUP BY status",
  )
  stage.expect(
    'what was answered 200 is delivered',
    ends.length === 1 && ends[0]!.status === 'delivered',
    ends.map(it => `${it.count} ${it.status}`).join(', '),
  )
}

/** Endpoints answer in the moment that the database begins to refuse writes, which lasts 6 s. */
const answeredWhile = async (
  stage: Stage,
  given: { by?: DatabaseProxy; databaseUrl?: string; begin(): Promise<unknown>; end(): Promise<unknown> },
  during: (server: { isReady(): Promise<boolean> }) => Promise<void> = () => Promise.resolve(),
): Promise<void> => {
  const { begin, end, ...way } = given
  const server = await stage.server(way)
  const client = stage.client(server)
  const world = await stage.world(client)
  const answers = gate()
  const endpoint = await stage.endpoint(async () => {
    await answers.opened
    return { status: 200 }
  })
  await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  await world.submitMany(client, EVENTS)
  await until('all have arrived', () => endpoint.arrivals.length === EVENTS)
  await begin()
  try {
    answers.open()
    const over = wait(UNWRITABLE_MS)
    await during(server)
    await over
  } finally {
    await end()
  }
  await untilSettled(stage)
  await wait(1_000)
  await expectBelieved(stage, endpoint, EVENTS)
}

const readOnly: Case = {
  name: 'read-only',
  says: 'What is answered while the database is read-only for 6 s is recorded when it is over, and not sent again',
  engines: SHARED,
  needsOwnServer: true,
  async run(stage) {
    const isMysql = stage.engine === 'mysql'
    // A user that cannot bypass read-only mode, unlike MariaDB's root.
    const name = new URL(stage.databaseUrl).pathname.slice(1)
    await stage.sql.run(`CREATE USER ${name}@'%'`)
    stage.after(() => stage.sql.run(`DROP USER ${name}@'%'`))
    await stage.sql.run(`GRANT ALL ON ${name}.* TO ${name}@'%'`)
    const url = new URL(stage.databaseUrl)
    url.username = name
    const setting = isMysql ? 'super_read_only' : 'read_only'
    const set = (value: string) => stage.sql.run(`SET GLOBAL ${setting} = ${value}`)
    stage.after(() => stage.sql.run('SET GLOBAL read_only = OFF'))
    await answeredWhile(
      stage,
      { databaseUrl: url.href, begin: () => set('ON'), end: () => stage.sql.run('SET GLOBAL read_only = OFF') },
      async server => {
        await wait(4_000)
        const isReady = await server.isReady()
        stage.expect('/readyz says that it cannot write', !isReady, `/readyz is ${isReady ? 'ready' : 'not ready'}`)
      },
    )
  },
}

const diskFull: Case = {
  name: 'disk-full',
  says:
    'What is answered while the disk of the database is full for 6 s is recorded when it is over, ' +
    'and not sent again',
  engines: SHARED,
  async run(stage) {
    // The proxy simulates it, because a full disk refuses at random.
    const by = await stage.proxy()
    const ends: (() => void)[] = []
    await answeredWhile(stage, {
      by,
      async begin() {
        const table = { errno: 1114, sqlState: 'HY000', message: "The table 'attempts' is full" }
        const disk = {
          errno: 1021,
          sqlState: 'HY000',
          message: 'Disk full (/tmp/#sql); waiting for someone to free some space',
        }
        ends.push(by.fail(/^\s*INSERT/i, table).end, by.fail(/^\s*(UPDATE|DELETE)/i, disk).end)
      },
      async end() {
        for (const end of ends) end()
      },
    })
  },
}

const groupReplication: Case = {
  name: 'group-replication',
  says:
    'What is answered while Group Replication rolls back what is committed (3101, for 6 s) is recorded, ' +
    'and not sent again',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    let failing: ReturnType<DatabaseProxy['fail']> | undefined
    await answeredWhile(stage, {
      by,
      async begin() {
        failing = by.fail(/^\s*COMMIT/i, {
          errno: 3101,
          sqlState: '40000',
          message: 'Plugin instructed the server to rollback the current transaction.',
          instead: 'ROLLBACK',
        })
      },
      async end() {
        failing!.end()
        stage.say(`${failing!.failed()} commits were rolled back`)
      },
    })
  },
}

const writeErrors: Case = {
  name: 'write-errors',
  says:
    'Any other error that says nothing about the data is an outage: what is answered meanwhile is recorded, ' +
    'and not sent again',
  engines: SHARED,
  async run(stage) {
    const by = await stage.proxy()
    const errors = [
      [1290, 'HY000', 'The MySQL server is running with the --read-only option so it cannot execute this statement'],
      [1792, '25006', 'Cannot execute statement in a READ ONLY transaction.'],
      [1836, 'HY000', 'Running in read-only mode'],
      [1047, '08S01', 'WSREP has not yet prepared node for application use'],
      [1053, '08S01', 'Server shutdown in progress'],
      [3100, 'HY000', "Error on observer while running replication hook 'before_commit'."],
      [1205, 'HY000', 'Lock wait timeout exceeded; try restarting transaction'],
      [1041, 'HY000', 'Out of memory'],
    ] as const
    let n = 0
    const next = () => {
      const [errno, sqlState, message] = errors[n++ % errors.length]!
      return { errno, sqlState, message }
    }
    let failing: ReturnType<DatabaseProxy['fail']> | undefined
    await answeredWhile(stage, {
      by,
      async begin() {
        failing = by.fail(/^\s*(INSERT|UPDATE|DELETE)/i, next)
      },
      async end() {
        failing!.end()
        stage.say(`${failing!.failed()} statements failed`)
      },
    })
  },
}

/** Stops a process, and resolves when it stands still, which takes a while on a busy machine. */
const freeze = async (server: Server): Promise<void> => {
  server.signal('SIGSTOP')
  await wait(1_000)
}

/** Stands still for 18 s, while what it waits for arrives. */
const stalled = async (stage: Stage, schedule: string, failures: number): Promise<void> => {
  const server = await stage.server({ env: { TIDINGS_RETRY_SCHEDULE: schedule } })
  const client = stage.client(server)
  const world = await stage.world(client)
  const answers = gate()
  const endpoint = await stage.endpoint(async (_arrival, before) => {
    if (before < failures) return { status: 500 }
    await answers.opened
    return { status: 200 }
  })
  await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  await world.submitMany(client, STALLED_EVENTS)
  const expected = STALLED_EVENTS * (failures + 1)
  await until('all have arrived', () => endpoint.arrivals.length === expected)
  // The process waits only for its timers and sockets.
  await wait(2_000)
  await freeze(server)
  answers.open()
  await wait(STALLED_MS)
  server.signal('SIGCONT')
  await untilSettled(stage)
  await wait(1_000)
  const again = endpoint.sentAgain().length
  stage.expect('nothing is sent again after its 200', again === 0, `${again} of ${STALLED_EVENTS} were sent again`)
  const timeouts = await stage.sql.number("SELECT COUNT(*) FROM attempts WHERE failure = 'timeout'")
  stage.expect('no answer is recorded as a timeout', timeouts === 0, `${timeouts} of ${STALLED_EVENTS} are timeouts`)
  const dropped = await stage.sql.number("SELECT COUNT(*) FROM deliveries WHERE status = 'dropped'")
  stage.expect('nothing answered 200 is dropped', dropped === 0, `${dropped} of ${STALLED_EVENTS} are dropped`)
}

const stall: Case = {
  name: 'stall',
  says: 'An answer that lies in the buffer of a process that stood still for 18 s is read before its time is up',
  engines: ALL,
  run: stage => stalled(stage, '0.5,1,2', 0),
}

const stallLastRetry: Case = {
  name: 'stall-last-retry',
  says: 'A delivery whose last retry was answered 200 while the process stood still for 18 s is not dropped',
  engines: ALL,
  run: stage => stalled(stage, '0.2', 1),
}

const stallPing: Case = {
  name: 'stall-ping',
  says: 'A ping that was answered 200 while the process stood still for 18 s lets its webhook in',
  engines: ALL,
  async run(stage) {
    const server = await stage.server()
    const client = stage.client(server)
    const answers = gate()
    const endpoint = await stage.endpoint(undefined, async () => {
      await answers.opened
      return { status: 200 }
    })
    const created = client(CREATE_WEBHOOK, { url: endpoint.url })
    await until('the ping has arrived', () => endpoint.pings.length === 1)
    await wait(1_000)
    await freeze(server)
    answers.open()
    await wait(STALLED_MS)
    server.signal('SIGCONT')
    const { code } = await created
    stage.expect(
      'the webhook is registered',
      code === undefined,
      code ? `createWebhook answered ${code}` : 'registered',
    )
  },
}

/** So many deliveries that an endpoint has, of a process that has ended. */
const dieHolding = async (stage: Stage, count: number) => {
  const dying = await stage.server()
  const client = stage.client(dying)
  const world = await stage.world(client)
  const endpoint = await stage.endpoint(() => (endpoint.arrivals.length <= count ? 'hang' : { status: 429 }))
  const { id } = await done(client(CREATE_WEBHOOK, { url: endpoint.url }))
  await world.submitMany(client, count)
  await until('all have arrived', () => endpoint.arrivals.length === count)
  dying.signal('SIGKILL')
  await dying.ended
  const expectLogged = async () => {
    const untold = await stage.sql.number(
      `SELECT COUNT(*) FROM deliveries d WHERE d.event_type <> 'ping' AND NOT EXISTS (SELECT 1 FROM attempts a ` +
        'WHERE a.delivery_id = d.id)',
    )
    stage.expect(
      'what an endpoint had has an attempt in its log',
      untold === 0,
      `${untold} of ${count} that the endpoint had have no attempt`,
    )
  }
  return { id, world, expectLogged }
}

const deadThenDisabled: Case = {
  name: 'dead-then-disabled',
  says: 'What a process had sent when it died is logged as lost, although its webhook is disabled before leases end',
  engines: ALL,
  async run(stage) {
    const { id, expectLogged } = await dieHolding(stage, 5)
    const other = await stage.server({ roles: 'api' })
    await done(stage.client(other)(UPSERT_WEBHOOK, { id, status: 'disabled' }))
    await wait(1_000)
    await expectLogged()
  },
}

const deadThenInactive: Case = {
  name: 'dead-then-inactive',
  says:
    'What a process had sent when it died is logged as lost, although its webhook becomes inactive before its ' +
    'leases end',
  engines: SHARED,
  async run(stage) {
    const { id, world, expectLogged } = await dieHolding(stage, 5)
    const other = await stage.server()
    await done(world.submit(stage.client(other)))
    await until('the webhook is inactive', async () => {
      const [webhook] = await stage.sql.rows<{ status: string }>('SELECT status FROM webhooks WHERE id = ?', [id])
      return webhook!.status === 'inactive'
    })
    await wait(1_000)
    await expectLogged()
  },
}

export const answerCases: Case[] = [
  readOnly,
  diskFull,
  groupReplication,
  writeErrors,
  stall,
  stallLastRetry,
  stallPing,
  deadThenDisabled,
  deadThenInactive,
]
