import { randomBytes, randomUUID } from 'node:crypto'
import { dateOf, quarterBefore } from '../../../server/domain/quarters.ts'
import { type DatabaseProxy, startProxy } from '../proxy.ts'
import type { Server, Tidings } from '../stage/processes.ts'
import { openSql, type Sql } from '../stage/sql.ts'
import { type Stage, until, within } from '../stage/stage.ts'
import { type Case, SHARED } from './case.ts'

// A process that starts, does what has fallen due, stops, migrates, or changes keys is cut off, held up or frozen at
// each of its statements that lock or write, while another one starts. No lock of the first may stay for longer than
// sessions last, nor keep the second from starting.

const LOCKING = /\b(FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|COMMIT|ROLLBACK)\b/i
const VALUES = /'[^']*'|\b\d+\b/g
const FAULTS = ['held', 'frozen', 'cut'] as const
/** Sessions last 15 s; the database may end one a little later, and a machine on which a start takes long more so. */
const LOCKED_S = 17
const LOCKED_PART = 1 / 5
/** After that the other has what it waits for. It then takes as long as where nothing is disturbed, twice at most. */
const OTHER_WAITS_MS = 25_000
const TWICE = 2
const AGAIN_MS = 60_000
/** How often it is tried to meet a statement that an undisturbed run makes. */
const MEETINGS = 3
const ROLES = 'api,delivery,scheduler'
/** Most of a meeting is waiting. */
const AT_ONCE = 4

type Fault = (typeof FAULTS)[number]

/** A database of its own. */
type Ground = { url: string; sql: Sql; keys: Record<string, string | number | null>[]; isMigrated: boolean }

type Beside = { other: Tidings; isDone: () => boolean | Promise<boolean> }

/** What is disturbed, and what another process does meanwhile. */
type Doing = {
  name: string
  /** What the database has before. */
  given: 'nothing' | 'schema' | 'keys'
  begin(stage: Stage, ground: Ground, databaseUrl: string): Promise<Tidings>
  /** Ends what is not disturbed yet, and begins what is. */
  onward?(first: Tidings, ground: Ground): Promise<void>
  beside(stage: Stage, ground: Ground): Promise<Beside>
  /** Whether the disturbed one is at work, or at its end. */
  isWell(first: Tidings): boolean | Promise<boolean>
}

/** Waits until a server has done what had fallen due: opened reports, found them overdue, and told a token's end. */
const untilScheduled = ({ sql }: Ground): Promise<void> => {
  const count = (what: string, ...bindings: (string | number)[]) => sql.number(`SELECT COUNT(*) FROM ${what}`, bindings)
  const isDone = async () =>
    (await count('report_quarters WHERE quarter = ? AND completed_at > 0', quarterBefore(Date.now()))) === 1 &&
    (await count('project_reports WHERE overdue_at IS NULL AND due_date < ?', dateOf(Date.now()))) === 0 &&
    (await count('access_tokens WHERE expiry_event_at IS NULL')) === 0
  return until('what had fallen due is done', isDone, AGAIN_MS)
}

const hasEnded = (first: Tidings): boolean => first.hasEnded() !== undefined

const startBeside = async (stage: Stage, { url }: Ground, env = {}): Promise<Beside> => {
  const other = await stage.serverStarting({ databaseUrl: url, roles: ROLES, env })
  return { other, isDone: other.isReady }
}

const serve: Doing['begin'] = (stage, _ground, databaseUrl) => stage.serverStarting({ databaseUrl, roles: ROLES })

const isReady: Doing['isWell'] = first => (first as Server).isReady()

/** Both keys, the new one first: `reseal` seals with it what the old one sealed. */
const NEW_KEY = randomBytes(32).toString('base64')
const bothKeys = (stage: Stage) => ({ TIDINGS_MASTER_KEY: `${NEW_KEY},${stage.masterKey}` })

const DOINGS: readonly Doing[] = [
  { name: 'start', given: 'schema', begin: serve, beside: startBeside, isWell: isReady },
  {
    name: 'stop',
    given: 'keys',
    begin: serve,
    async onward(first, ground) {
      await (first as Server).untilReady(AGAIN_MS)
      await untilScheduled(ground)
      first.signal('SIGTERM')
    },
    beside: startBeside,
    isWell: hasEnded,
  },
  {
    name: 'migrate',
    given: 'nothing',
    begin: async (stage, _ground, databaseUrl) => stage.operator(['server', 'migrate'], databaseUrl),
    async beside(stage, { url }) {
      const other = stage.operator(['server', 'migrate'], url)
      return { other, isDone: () => other.hasEnded()?.code === 0 }
    },
    isWell: hasEnded,
  },
  {
    name: 'rotate',
    given: 'schema',
    begin: async (stage, _ground, databaseUrl) => stage.operator(['server', 'keys', 'rotate'], databaseUrl),
    beside: startBeside,
    isWell: hasEnded,
  },
  {
    name: 'revoke',
    given: 'keys',
    async begin(stage, { keys }, databaseUrl) {
      return stage.operator(['server', 'keys', 'revoke', String(keys[0]!.kid), '--yes'], databaseUrl)
    },
    beside: startBeside,
    isWell: hasEnded,
  },
  {
    name: 'reseal',
    given: 'keys',
    begin: async (stage, _ground, databaseUrl) =>
      stage.operator(['server', 'keys', 'reseal'], databaseUrl, bothKeys(stage)),
    beside: (stage, ground) => startBeside(stage, ground, bothKeys(stage)),
    isWell: hasEnded,
  },
]

/** Statements of one kind are one. */
const shapeOf = (text: string): string => {
  const shape = text.replaceAll(VALUES, '?').replaceAll(/\s+/g, ' ').trim()
  const [schemaChange] = /^(CREATE|ALTER|DROP) (UNIQUE )?\w+/i.exec(shape) ?? []
  return (schemaChange ?? shape.slice(0, 120)).toLowerCase()
}

const YEAR_MS = 366 * 24 * 3_600_000
const ONE = randomUUID()
const EMPTIED = [
  ...['signing_keys', 'master_keys', 'processes', 'used_signatures', 'report_quarters', 'project_reports'],
  ...['delivery_queue', 'deliveries', 'attempts', 'events', 'access_tokens'],
]

const createGround = async (stage: Stage): Promise<Ground> => {
  const url = new URL(stage.databaseUrl)
  const name = `${url.pathname.slice(1)}_${randomBytes(3).toString('hex')}`
  url.pathname = name
  await stage.sql.run(`CREATE DATABASE ${name} CHARACTER SET utf8mb4`)
  stage.after(() => stage.sql.run(`DROP DATABASE ${name}`))
  const sql = await openSql(url.href)
  stage.after(sql.close)
  return { url: url.href, sql, keys: [], isMigrated: false }
}

/** A project of last year, so that reports are opened and overdue, and what `given: keys` begins with. */
const fill = async (stage: Stage, ground: Ground): Promise<void> => {
  const { url, sql } = ground
  for (const args of [['migrate'], ['keys', 'rotate']]) {
    const done = stage.operator(['server', ...args], url)
    if ((await done.ended).code !== 0) throw new Error(done.stderr())
  }
  ground.keys = await sql.rows('SELECT * FROM signing_keys ORDER BY generation')
  const then = Date.now() - YEAR_MS
  await sql.run('INSERT INTO organisations (id, name, created_at, updated_at) VALUES (?, ?, 1, 1)', [ONE, 'One'])
  await sql.run('INSERT INTO projects (id, organisation_id, name, created_at, updated_at) VALUES (?, ?, ?, ?, ?)', [
    ...[ONE, ONE, 'One', then, then],
  ])
  ground.isMigrated = true
}

const prepare = async (stage: Stage, ground: Ground, { given }: Doing): Promise<void> => {
  const { sql } = ground
  if (given === 'nothing') {
    const name = databaseOf(ground)
    await stage.sql.run(`DROP DATABASE ${name}`)
    await stage.sql.run(`CREATE DATABASE ${name} CHARACTER SET utf8mb4`)
    ground.isMigrated = false
    return
  }
  if (!ground.isMigrated) await fill(stage, ground)
  for (const table of EMPTIED) await sql.run(`DELETE FROM ${table}`)
  await sql.run('UPDATE projects SET organisation_id = ?', [ONE])
  await sql.run(
    "INSERT INTO events (id, type, organisation_id, project_id, payload, created_at) VALUES (?, 'ping', ?, ?, '{}', 1)",
    [randomUUID(), ONE, ONE],
  )
  await sql.run(
    `INSERT INTO access_tokens (id, name, api_key, secret_sealed, sees_all_organisations, expires_at,
       created_at, updated_at) VALUES (?, 'old', 'old', '', 1, 1, 1, 1)`,
    [ONE],
  )
  if (given !== 'keys') return
  for (const key of ground.keys) {
    const columns = Object.keys(key)
    await sql.run(
      `INSERT INTO signing_keys (${columns.join(', ')}) VALUES (${columns.map(() => '?').join(', ')})`,
      Object.values(key),
    )
  }
}

/** The way to a ground's database, and the address by which it is taken. */
const wayTo = async (stage: Stage, { url }: Ground): Promise<{ proxy: DatabaseProxy; url: string }> => {
  const proxy = await startProxy(url)
  stage.after(proxy.close)
  return { proxy, url: proxy.url }
}

/** The shapes of the statements of a doing that lock or write, whenever it is done: of two runs, those of both. */
const statementsOf = async (stage: Stage, ground: Ground, doing: Doing): Promise<string[]> => {
  const seen = await statementsOnce(stage, ground, doing)
  return [...seen.intersection(await statementsOnce(stage, ground, doing))]
}

const statementsOnce = async (stage: Stage, ground: Ground, doing: Doing): Promise<Set<string>> => {
  await prepare(stage, ground, doing)
  const { proxy, url } = await wayTo(stage, ground)
  const seen = new Set<string>()
  let isCounted = !doing.onward
  proxy.watch(text => {
    if (isCounted && LOCKING.test(text)) seen.add(shapeOf(text))
  })
  const first = await doing.begin(stage, ground, url)
  const signal = (name: NodeJS.Signals): void => {
    isCounted = true
    first.signal(name)
  }
  await doing.onward?.({ ...first, signal }, ground)
  if (!(await within(AGAIN_MS, () => doing.isWell(first)))) throw new Error(`${doing.name}: ${first.stderr()}`)
  if (!first.hasEnded()) {
    await untilScheduled(ground)
    first.signal('SIGKILL')
  }
  await first.ended
  proxy.close()
  return seen
}

const isCommit = (shape: string): boolean => shape.startsWith('commit')

/** InnoDB renews what it shows of transactions only if nobody has read it for 100 ms: read more often, it stays old. */
const LOOK_AGAIN_MS = 250

/** For how many seconds a session's transaction has held locks. */
type Locks = { db: string; session: number; lockedS: number }
type Look = { at: number; locks: Promise<Locks[]> }
let lastLook: Look | undefined

const look = async (sql: Sql): Promise<Locks[]> => {
  const found = await sql.rows(
    `SELECT p.db, p.id, TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) AS locked_s
     FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
     WHERE t.trx_rows_locked > 0 OR t.trx_rows_modified > 0`,
  )
  return found.map(row => ({ db: String(row.db), session: Number(row.id), lockedS: Number(row.locked_s) }))
}

const databaseOf = ({ url }: Ground): string => new URL(url).pathname.slice(1)

/** For how many seconds some transaction on the database has held locks, of these sessions if any are named. */
const lockedS = async (ground: Ground, sessions?: Set<number>): Promise<number> => {
  const at = performance.now()
  if (!lastLook || at - lastLook.at > LOOK_AGAIN_MS) lastLook = { at, locks: look(ground.sql) }
  const db = databaseOf(ground)
  const counted = (await lastLook.locks).filter(each => each.db === db && (sessions?.has(each.session) ?? true))
  return Math.max(0, ...counted.map(each => each.lockedS))
}

/**
 * Whose locks may not stay: everybody's, but where it is migrated only those of the sessions that were there when the
 * first was disturbed. Whoever migrates after that rightly holds the lock until it is done.
 */
const sessionsHeldTo = async (ground: Ground, { given }: Doing): Promise<Set<number> | undefined> => {
  if (given !== 'nothing') return undefined
  const found = await ground.sql.rows('SELECT id FROM information_schema.processlist WHERE db = ?', [
    databaseOf(ground),
  ])
  return new Set(found.map(row => Number(row.id)))
}

type Meeting = { doing: Doing; shape: string; fault: Fault; readyWithinMs: number; lockedWithinS: number }
/** `wrong`: what did not hold. */
type Met = { readyMs: number; lockedS: number; wrong: string[] }

/** Waits until another is ready and no lock is left. */
const lookOn = async (stage: Stage, ground: Ground, meeting: Meeting, first: Tidings) => {
  const { doing, readyWithinMs, lockedWithinS } = meeting
  const sessions = await sessionsHeldTo(ground, doing)
  const at = Date.now()
  const { other, isDone } = await doing.beside(stage, ground)
  const met: Met = { readyMs: 0, lockedS: 0, wrong: [] }
  const isOver = async (): Promise<boolean> => {
    // The transaction may have begun long before.
    const nowS = Math.min(await lockedS(ground, sessions), (Date.now() - at) / 1000)
    met.lockedS = Math.max(met.lockedS, nowS)
    met.readyMs ||= (await isDone()) ? Date.now() - at : 0
    return met.readyMs > 0 && nowS === 0
  }
  await within(readyWithinMs + AGAIN_MS, isOver)
  if (met.readyMs === 0) met.wrong.push(`the other came to nothing: ${other.stderr().slice(-300)}`)
  if (met.readyMs > readyWithinMs) met.wrong.push(`the other came after ${met.readyMs} ms`)
  if (met.lockedS > lockedWithinS) met.wrong.push(`locks were held for ${met.lockedS.toFixed(1)} s`)
  const end = async (): Promise<void> => {
    for (const each of [first, other]) if (!each.hasEnded()) each.signal('SIGKILL')
    await Promise.all([first.ended, other.ended])
  }
  return { met, end }
}

/** Disturbs one, and sees how another fares. Undefined if the statement did not come. */
const meet = async (stage: Stage, ground: Ground, meeting: Meeting): Promise<Met | undefined> => {
  const { doing, shape, fault } = meeting
  await prepare(stage, ground, doing)
  const { proxy, url } = await wayTo(stage, ground)
  const hold = () => proxy.hold(text => shapeOf(text) === shape, { answer: fault === 'frozen' })
  let held = doing.onward ? undefined : hold()
  const first = await doing.begin(stage, ground, url)
  const signal = (name: NodeJS.Signals): void => {
    held ??= hold()
    first.signal(name)
  }
  await doing.onward?.({ ...first, signal }, ground)
  if (!(await within(AGAIN_MS, () => held!.count() > 0))) {
    first.signal('SIGKILL')
    await first.ended
    proxy.close()
    return undefined
  }
  if (fault === 'cut') {
    proxy.cut()
    held!.end()
  }
  if (fault === 'frozen') first.signal('SIGSTOP')
  const { met, end } = await lookOn(stage, ground, meeting, first)
  if (fault === 'frozen') first.signal('SIGCONT')
  held!.end()
  const isWell = await within(AGAIN_MS, () => doing.isWell(first))
  const fate = `${JSON.stringify(first.hasEnded())}: ${first.stderr().slice(-300)}`
  if (!isWell) met.wrong.push(`the first did not recover, ${fate}`)
  await end()
  proxy.close()
  return met
}

const shown = ({ readyMs, lockedS }: Met): string => `ready after ${readyMs} ms, locked ${lockedS.toFixed(0)} s`

/** A look of the loop or the schedule may have fallen into both runs in which statements were counted. */
const meetSurely = async (stage: Stage, ground: Ground, meeting: Meeting): Promise<Met | 'by chance' | undefined> => {
  for (let n = 0; n < MEETINGS; n++) {
    const met = await meet(stage, ground, meeting)
    if (met) return met
    if (!(await statementsOnce(stage, ground, meeting.doing)).has(meeting.shape)) return 'by chance'
  }
  return undefined
}

/** How long a start takes while the grounds' others start as well, and two processes are at each. */
const undisturbedMs = async (stage: Stage, ground: Ground): Promise<number> => {
  const doing = DOINGS[0]!
  await prepare(stage, ground, doing)
  const at = Date.now()
  const both = await Promise.all([serve(stage, ground, ground.url), serve(stage, ground, ground.url)])
  if (!(await within(3 * AGAIN_MS, async () => (await isReady(both[0]!)) && isReady(both[1]!))))
    throw new Error(both[0]!.stderr())
  const tookMs = Date.now() - at
  for (const each of both) each.signal('SIGKILL')
  await Promise.all(both.map(each => each.ended))
  return tookMs
}

/**
 * Commits, which hold the most, meet every fault, and every other statement meets one of them; after these `usual` ones
 * it meets the others (`--size`). The first is a commit that is held up.
 */
const meetingsAt = (shapes: string[]): { all: Pick<Meeting, 'shape' | 'fault'>[]; usual: number } => {
  const others = shapes.filter(shape => !isCommit(shape))
  const round = (n: number) => others.map((shape, at) => ({ shape, fault: FAULTS[(at + n) % FAULTS.length]! }))
  const commits = shapes.filter(isCommit).flatMap(shape => FAULTS.map(fault => ({ shape, fault })))
  const usual = [...commits, ...round(0)]
  return { all: [...usual, ...round(1), ...round(2)], usual: Math.max(usual.length, FAULTS.length) }
}

const meetAll = async (stage: Stage, doing: Doing): Promise<void> => {
  const grounds = await Promise.all(
    Array.from({ length: Math.min(AT_ONCE, stage.size(AT_ONCE)) }, () => createGround(stage)),
  )
  const startMs = Math.max(...(await Promise.all(grounds.map(each => undisturbedMs(stage, each)))))
  const readyWithinMs = OTHER_WAITS_MS + TWICE * startMs
  const lockedWithinS = LOCKED_S + LOCKED_PART * (startMs / 1000)
  const shapes = await statementsOf(stage, grounds[0]!, doing)
  stage.say(`${shapes.length} statements`)
  const { all, usual } = meetingsAt(shapes)
  const meetings = all
    .slice(0, stage.size(usual))
    .map(({ shape, fault }): Meeting => ({ doing, shape, fault, readyWithinMs, lockedWithinS }))
  const wrong: string[] = []
  const found = { met: 0, byChance: 0, readyMs: 0, lockedS: 0 }
  let next = 0
  const meetInTurn = async (ground: Ground): Promise<void> => {
    while (next < meetings.length) {
      const meeting = meetings[next++]!
      const what = `${meeting.fault} at ${meeting.shape.slice(0, 90)}`
      const met = await meetSurely(stage, ground, meeting)
      if (met === 'by chance') found.byChance += 1
      stage.say(`${what}: ${typeof met === 'object' ? shown(met) : (met ?? 'not met')}`)
      if (typeof met !== 'object') continue
      found.met += 1
      found.readyMs = Math.max(found.readyMs, met.readyMs)
      found.lockedS = Math.max(found.lockedS, met.lockedS)
      wrong.push(...met.wrong.map(one => `${what}: ${one}`))
    }
  }
  await Promise.all(grounds.map(meetInTurn))
  const count = `${found.met} of ${meetings.length}, at ${shapes.length} statements; ${found.byChance} came by chance`
  const ownMeetings = meetings.length - found.byChance
  stage.expect('the statements were met', found.met > 0 && found.met >= 0.9 * ownMeetings, count)
  const seen = `another was ready after ${found.readyMs} ms, locks were held for ${found.lockedS.toFixed(1)} s, at most`
  stage.expect('another could start, and the first went on or ended', wrong.length === 0, wrong.join('; ') || seen)
}

const SAYS: Record<string, string> = {
  start: 'a start, and of what falls due then,',
  stop: 'a stop',
  migrate: 'a migration',
  rotate: 'a rotation of the signing keys',
  revoke: 'a revocation of a signing key',
  reseal: 'a change of the master key',
}

export const startCases = DOINGS.map(
  (doing): Case => ({
    name: `${doing.name}-statements`,
    says: `A process held up, frozen or cut off at any statement of ${SAYS[doing.name]} keeps none from starting`,
    engines: SHARED,
    run: stage => meetAll(stage, doing),
  }),
)
