import { type ChildProcess, fork } from 'node:child_process'
import { getCompileCacheDir } from 'node:module'
import type { Socket } from 'node:net'
import { availableParallelism, setPriority } from 'node:os'
import { dirname, extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { TidingsError } from '../../shared/errors.ts'
import type { Database } from '../database/connect.ts'
import { RETRY_AFTER_S } from '../database/patience.ts'
import { BUDGET, overspent } from '../graphql/budget.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp, type Outcomes } from '../graphql/request.ts'
import type { Log } from '../log.ts'
import { BODIES_FD, type FromReader, type ToReader } from './messages.ts'

/** More than one, so that one is left if another is blocked. */
const MOST_READERS = availableParallelism() < 4 ? 2 : 4
/** Requests that a reader runs at once: statements run in a database server, or in the reader itself on SQLite. */
const PLACES = { embedded: 1, server: 4 }
/** Megabytes of a reader's heap: of what lives long, and of each of the three parts for what is new. */
const OLD_MB = 104
const NEW_MB = 8
const HEAP_MB = OLD_MB + 3 * NEW_MB
/** A reader that has not ended a request this long after its limit is blocked, and is killed. */
const HELD_MS = 2_000
/** A query that has run for so long is long. */
const LONG_MS = 250
/** Long queries at once of one token, and in all: its others, and those of others, still find places. */
const MOST_LONG_A_TOKEN = MOST_READERS / 2
const mostLong = (places: number): number => Math.max(MOST_READERS, (places * MOST_READERS) / 2)
/** After one token had more of them, it has no more queries of any kind than that at once, for so long. */
const CROWDED_MS = 10_000
/** How long a request waits for a busy reader before another reader is started. */
const WORTH_A_READER_MS = 100
/** The code of an answer that was not wanted any more. */
const HUNG_UP = hungUp().code
/** How long after the server the first reader starts. */
const WARM_MS = 1_000
/** The pause before a reader that ended before it was ready is started again. */
const RESTART_MS = 500
/** The most characters of waiting requests, in total; half of it for one token. */
const MOST_WAITING = 32_000_000
const BESIDE_BODY = 10_000

/** `body`: in parts, as it came, so that nobody holds a large one twice. */
export type ReaderAnswer = Omit<GraphqlAnswer, 'body'> & {
  body: Uint8Array[]
  codes: Set<unknown>
  operation?: string | undefined
}

type Told = ReaderAnswer | 'mutation' | Error

/**
 * When a request was made, how long it may wait, and whether its client still waits; for a finished mutation, the
 * results of its fields.
 */
export type Terms = { now: number; giveUpAt: number; gone: AbortSignal; made?: Outcomes | undefined }

type Job = Terms & {
  id: number
  request: GraphqlRequest
  /** How often its reader ended while it ran. */
  ended: number
  isOver: boolean
  isLong: boolean
  /** Its reader has been told to end it, and it will be run again. */
  isPutBack: boolean
  askedAt: number
  timer?: NodeJS.Timeout
  longTimer?: NodeJS.Timeout
  settle(told: Told): void
}

type Reader = {
  process: ChildProcess
  isReady: boolean
  running: Map<number, Job>
  connectionIds: Set<number>
  /** Resolves when the bodies announced so far have come. */
  bodyReceived: Promise<unknown>
}

export type Readers = {
  /**
   * Answers a query in another process, so that it blocks nobody here. Resolves to 'mutation' for a valid mutation,
   * which has to be made here. Throws UNAVAILABLE if no reader had a place in time, or the error that ended the query.
   */
  ask(request: GraphqlRequest, terms: Terms): Promise<ReaderAnswer | 'mutation'>
  /** Starts the first reader soon, so that no query has to wait for it. */
  warm(): void
  stop(): void
}

/** Starts processes that answer queries, as they are needed. */
export const createReaders = (databaseUrl: string, { knex, dialect }: Database, log: Log): Readers => {
  const places = dialect.isEmbedded ? PLACES.embedded : PLACES.server
  const readers = new Set<Reader>()
  const waiting: Job[] = []
  /** By token. */
  const crowdedUntil = new Map<string, number>()
  let lastId = 0
  let isStopping = false
  let startAfter = 0

  const startReader = (): void => {
    const child = fork(fileURLToPath(new URL(`./reader${extname(import.meta.url)}`, import.meta.url)), {
      env: { ...process.env, ...compileCache() },
      execArgv: [
        `--max-old-space-size=${OLD_MB}`,
        // V8's own choice is 64 MB, which garbage fills before it is collected.
        `--max-semi-space-size=${NEW_MB}`,
        // A query that makes much garbage would keep a core busy for each thread that collects it.
        '--single-threaded-gc',
        '--disable-warning=ExperimentalWarning',
      ],
      serialization: 'advanced',
      // Standard output belongs to a command's output.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc', 'pipe'],
    })
    const reader: Reader = {
      process: child,
      isReady: false,
      running: new Map(),
      connectionIds: new Set(),
      bodyReceived: Promise.resolve(),
    }
    yieldToOthers(child)
    child.unref()
    child.channel?.unref()
    bodiesOf(child)
      .on('error', () => {})
      .unref()
    readers.add(reader)
    child.on('error', error => log.error({ err: error }, 'a reader failed'))
    child.on('message', (message: FromReader) => heard(reader, message))
    child.on('exit', (_code, signal) => ended(reader, signal === 'SIGKILL'))
    send(reader, { kind: 'start', databaseUrl, engine: dialect.name, logLevel: log.level, places })
  }

  // The process may have ended already; its exit event follows.
  const send = ({ process }: Reader, message: ToReader): void => void process.send(message, () => {})

  /** Closes the connections of a reader with their running statements; ignores those already closed. */
  const end = (reader: Reader, connectionIds: Iterable<number>): void => {
    for (const connectionId of connectionIds) {
      reader.connectionIds.delete(connectionId)
      knex.raw(`KILL ${connectionId}`).catch(error => log.debug({ err: error }, 'a connection was not ended'))
    }
  }

  const heard = (reader: Reader, message: FromReader): void => {
    if (message.kind === 'ready') {
      reader.isReady = true
    } else if (message.kind === 'connection') {
      if (message.before !== undefined) reader.connectionIds.delete(message.before)
      reader.connectionIds.add(message.connectionId)
    } else if (message.kind === 'end') {
      end(reader, [message.connectionId])
    } else if (message.kind === 'mutation') {
      const job = reader.running.get(message.id)!
      left(reader, job)
      job.settle('mutation')
    } else {
      return void answered(reader, message)
    }
    dispatch()
  }

  const answered = async (reader: Reader, message: Extract<FromReader, { kind: 'answer' }>): Promise<void> => {
    const { id, body, status, headers, codes, operation } = message
    const job = reader.running.get(id)!
    const whole = typeof body === 'number' ? await receive(reader, body) : [body]
    // The reader may have ended meanwhile, and another have the job.
    if (reader.running.get(id) !== job) return
    left(reader, job)
    if (job.isPutBack && codes.has(HUNG_UP)) waitAgain(job)
    else job.settle({ status, headers, codes, operation, body: whole })
    dispatch()
  }

  const left = (reader: Reader, job: Job): void => {
    reader.running.delete(job.id)
    clearTimeout(job.timer)
    clearTimeout(job.longTimer)
  }

  const waitAgain = (job: Job): void => {
    job.isPutBack = false
    if (job.gone.aborted) job.settle(hungUp())
    else if (performance.now() > job.giveUpAt) job.settle(noPlace())
    else {
      waiting.push(job)
      waiting.sort((a, b) => a.askedAt - b.askedAt)
    }
  }

  /** @param isKilled from outside; a process whose heap is full ends itself */
  const ended = (reader: Reader, isKilled: boolean): void => {
    readers.delete(reader)
    if (isStopping) return
    end(reader, reader.connectionIds)
    if (!reader.isReady) startAfter = performance.now() + RESTART_MS
    const requestIds = [...reader.running.values()].map(({ request }) => request.requestId)
    if (requestIds.length > 0) log.warn({ requestIds }, 'a reader was ended in the middle of its work')
    const jobs = [...reader.running.values()]
    for (const job of jobs) {
      left(reader, job)
      job.ended += 1
      // If it is not known which request ended the reader, each is tried once more, alone.
      if (job.isOver) job.settle(job.gone.aborted ? hungUp() : overspent('timeMs'))
      else if (job.ended > 1 || (jobs.length === 1 && !isKilled)) job.settle(outOfMemory())
      else waitAgain(job)
    }
    dispatch()
  }

  const isAlone = ({ running }: Reader): boolean => [...running.values()].some(job => job.ended > 0)

  const roomFor = (job: Job): Reader | undefined => {
    const most = job.ended > 0 ? 1 : places
    const free = [...readers].filter(reader => reader.isReady && reader.running.size < most && !isAlone(reader))
    return free.sort((a, b) => a.running.size - b.running.size)[0]
  }

  const allRunning = (): Job[] => [...readers].flatMap(({ running }) => [...running.values()])

  const isOf =
    ({ request }: Job) =>
    (other: Job): boolean =>
      other.request.token.id === request.token.id

  const isCrowded = ({ request: { token } }: Job): boolean => performance.now() < (crowdedUntil.get(token.id) ?? 0)

  /** One token gets at most half of the places. What a mutation has made does not wait for its long queries. */
  const mayHaveMore = (job: Job): boolean => {
    const most = isCrowded(job) && !job.made ? MOST_LONG_A_TOKEN : (places * MOST_READERS) / 2
    const running = allRunning()
    if (job.isLong && running.filter(({ isLong }) => isLong).length >= mostLong(places)) return false
    return running.filter(isOf(job)).length < most
  }

  /** Puts back a query that has become one long query too many: it runs again when another one has ended. */
  const becomesLong = (reader: Reader, job: Job): void => {
    const others = allRunning().filter(({ isLong }) => isLong)
    const isTokensOwn = others.filter(isOf(job)).length >= MOST_LONG_A_TOKEN
    job.isLong = true
    if (isTokensOwn) crowd(job)
    if (!isTokensOwn && others.length < mostLong(places)) return
    job.isPutBack = true
    send(reader, { kind: 'gone', id: job.id })
  }

  const crowd = ({ request: { token } }: Job): void => {
    const now = performance.now()
    for (const [id, until] of crowdedUntil) if (until < now) crowdedUntil.delete(id)
    crowdedUntil.set(token.id, now + CROWDED_MS)
  }

  const dispatch = (): void => {
    if (isStopping) return
    for (const job of [...waiting]) {
      const reader = mayHaveMore(job) ? roomFor(job) : undefined
      if (!reader) continue
      waiting.splice(waiting.indexOf(job), 1)
      run(reader, job)
    }
    if (![...readers].every(({ isReady }) => isReady) || readers.size >= MOST_READERS) return
    const first = waiting.find(mayHaveMore)
    if (!first) return
    const startAt = readers.size === 0 ? startAfter : Math.max(startAfter, first.askedAt + WORTH_A_READER_MS)
    if (performance.now() >= startAt) startReader()
    else setTimeout(dispatch, startAt - performance.now() + 1).unref()
  }

  const run = (reader: Reader, job: Job): void => {
    reader.running.set(job.id, job)
    job.timer = endIfHeld(reader, job, BUDGET.timeMs + HELD_MS)
    if (!job.isLong) job.longTimer = setTimeout(becomesLong, LONG_MS, reader, job)
    const { id, request, now, giveUpAt, made } = job
    send(reader, { kind: 'ask', id, request, now, patienceMs: giveUpAt - performance.now(), made })
  }

  const endIfHeld = ({ process }: Reader, job: Job, afterMs: number): NodeJS.Timeout => {
    clearTimeout(job.timer)
    return setTimeout(() => {
      job.isOver = true
      process.kill('SIGKILL')
    }, afterMs)
  }

  /** Ends a waiting job; returns whether it was waiting. */
  const giveUp = (job: Job, reason: Error): boolean => {
    const index = waiting.indexOf(job)
    if (index < 0) return false
    waiting.splice(index, 1)
    job.settle(reason)
    return true
  }

  const forget = (job: Job): void => {
    if (giveUp(job, hungUp())) return
    const reader = [...readers].find(({ running }) => running.get(job.id) === job)
    if (!reader) return
    send(reader, { kind: 'gone', id: job.id })
    job.timer = endIfHeld(reader, job, HELD_MS)
  }

  const isTooMuch = (job: Job): boolean => {
    const weight = (jobs: Job[]) => jobs.reduce((sum, { request }) => sum + request.body.length + BESIDE_BODY, 0)
    return weight(waiting) > MOST_WAITING || weight(waiting.filter(isOf(job))) > MOST_WAITING / 2
  }

  return {
    async ask(request, terms) {
      const settled = Promise.withResolvers<Told>()
      lastId += 1
      const job: Job = {
        ...terms,
        id: lastId,
        request,
        ended: 0,
        isOver: false,
        isLong: false,
        isPutBack: false,
        settle: settled.resolve,
        askedAt: performance.now(),
      }
      if (job.gone.aborted) throw hungUp()
      if (isTooMuch(job)) throw noPlace()
      job.gone.addEventListener('abort', () => forget(job), { once: true })
      waiting.push(job)
      dispatch()
      const late = setTimeout(() => giveUp(job, noPlace()), job.giveUpAt - performance.now())
      const told = await settled.promise
      clearTimeout(late)
      if (told instanceof Error) throw told
      return told
    },
    warm() {
      const startFirst = () => {
        if (!isStopping && readers.size === 0) startReader()
      }
      setTimeout(startFirst, WARM_MS).unref()
    },
    stop() {
      isStopping = true
      for (const { process } of readers) process.kill('SIGKILL')
    },
  }
}

const bodiesOf = ({ stdio }: ChildProcess): Socket => stdio[BODIES_FD] as Socket

/** Bodies come in the order in which they were announced. Never resolves if the reader ends before. */
const receive = (reader: Reader, bytes: number): Promise<Uint8Array[]> => {
  const received = reader.bodyReceived.then(() => readParts(bodiesOf(reader.process), bytes))
  reader.bodyReceived = received
  return received
}

const readParts = async (pipe: Socket, bytes: number): Promise<Uint8Array[]> => {
  const parts: Uint8Array[] = []
  for (let left = bytes; left > 0; ) {
    const part: Buffer | null = pipe.read(Math.min(left, pipe.readableLength))
    if (part) {
      parts.push(part)
      left -= part.length
    } else await new Promise(resolve => pipe.once('readable', resolve))
  }
  return parts
}

/** The compile cache of this process, with which a reader starts in half the time. */
const compileCache = (): { NODE_COMPILE_CACHE?: string } => {
  const folder = getCompileCacheDir()
  // Node appends a folder for its version.
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: dirname(folder) }
}

/** A lower priority, so that deliveries come first when CPU is scarce. */
const NICENESS = 10

const yieldToOthers = ({ pid }: ChildProcess): void => {
  try {
    if (pid !== undefined) setPriority(pid, NICENESS)
  } catch {
    // The process has already ended.
  }
}

const noPlace = (): TidingsError<'UNAVAILABLE'> =>
  new TidingsError(
    'UNAVAILABLE',
    `Too many queries are under way. Nothing was done. Try again in ${RETRY_AFTER_S} s.`,
    { retryAfterSeconds: RETRY_AFTER_S },
  )

const outOfMemory = (): TidingsError =>
  new TidingsError(
    'RESULT_TOO_LARGE',
    `The request takes more than ${HEAP_MB} MB of memory. Give its lists smaller limits, or ask for fewer fields.`,
    { limit: HEAP_MB, budget: 'memoryMb' },
  )
