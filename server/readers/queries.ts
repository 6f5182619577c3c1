import { connectToRead, type Database } from '../database/connect.ts'
import { dialectNamed } from '../database/dialect.ts'
import { answerGraphql, NOT_HERE } from '../graphql/answer.ts'
import { Budget } from '../graphql/budget.ts'
import { createQueryContext, type QueryService } from '../graphql/context.ts'
import { createDocuments } from '../graphql/documents.ts'
import { nameOfOperation } from '../graphql/operation-name.ts'
import { type GraphqlAnswer, hungUp } from '../graphql/request.ts'
import { createSchema } from '../graphql/schema.ts'
import { answerTask, budgetOf } from '../graphql/task.ts'
import { createLog } from '../log.ts'
import type { FromReader, ToReader } from './messages.ts'
import { SharedTime } from './shared-time.ts'

type Start = Extract<ToReader, { kind: 'start' }>
type Ask = Extract<ToReader, { kind: 'ask' }>

/** A connection that one request at a time uses. */
type Session = { database: Database; budget: Budget; connectionId?: number }

/** A statement ends so long after its request, so that the budget reports the error. */
const AFTER_MS = 1_000
/** A longer body goes to the server on the pipe, encoded in parts of this length, so that it is in memory once. */
const PART_CHARACTERS = 64 * 1024

/** What answers queries has to do with the server's process. */
export type Port = {
  tell(message: FromReader): void
  /** Sends a part of a long body; resolves when there is room for another one. */
  sendPart(text: string): Promise<unknown>
  /** Ends, after what nobody expects. */
  end(): void
}

const isHighSurrogate = (unit: number): boolean => unit >= 0xd800 && unit < 0xdc00

const openSession = ({ databaseUrl, engine, timeMs }: Start, tell: Port['tell']): Session => {
  const database = connectToRead(databaseUrl, dialectNamed(engine), {
    statementMs: timeMs + AFTER_MS,
    onConnect: connectionId => {
      tell({ kind: 'connection', connectionId, before: session.connectionId })
      session.connectionId = connectionId
    },
  })
  const session: Session = { database, budget: new Budget() }
  // Work that a request has queued ends with it.
  database.knex.on('query', () => session.budget.proceed())
  return session
}

/** Closes a session with its running statement. The server's process can do so even after this one was killed. */
const endSession = ({ database, connectionId }: Session, tell: Port['tell']): Promise<void> => {
  if (connectionId !== undefined) tell({ kind: 'end', connectionId })
  return database.close()
}

/** The code of an answer that was not wanted any more; a query may be refused with it, too. */
const HUNG_UP = hungUp().code

const cpuMs = (): number => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000
}

/** Answers queries as it is told, and changes nothing, so that it can be killed at any moment. */
export const answerQueries = (
  message: Start,
  { tell, sendPart, end }: Port,
): { hear(message: ToReader): void; close(): Promise<unknown> } => {
  const log = createLog(message.logLevel)
  const schema = createSchema()
  const documents = createDocuments(schema)
  const sessions = new Set<Session>()
  const idle: Session[] = []
  // While it waits for a database server it has nothing else to do; SQLite's statements are this process's own work.
  // Time in which others had the processor counts for nobody.
  const time = new SharedTime(() => cpuMs() + (message.places === 1 ? 0 : performance.eventLoopUtilization().idle))
  const running = new Map<number, { gone: AbortController; match: () => void }>()

  let bodySent = Promise.resolve()
  const send = async (body: string): Promise<void> => {
    for (let from = 0, to: number; from < body.length; from = to) {
      to = from + PART_CHARACTERS
      if (isHighSurrogate(body.charCodeAt(to - 1))) to -= 1
      await sendPart(body.slice(from, to))
    }
  }

  const answer = async ({ id, request, now, patienceMs }: Ask): Promise<void> => {
    const budget = budgetOf(request, message.timeMs)
    const gone = new AbortController()
    const turn = Promise.withResolvers<void>()
    budget.onHeavy = () => {
      tell({ kind: 'heavy', id })
      return turn.promise
    }
    budget.onLarge = () => tell({ kind: 'large', id })
    running.set(id, { gone, match: turn.resolve })
    const session = idle.pop() ?? openSession(message, tell)
    sessions.add(session)
    session.budget = budget
    const begunAt = time.begin()
    let asked: string | undefined
    const service: QueryService = { database: session.database, tools: { clock: { now: () => now } } }
    const answering = { schema, log, documents, budget, gone: gone.signal }
    const answered: (GraphqlAnswer & { codes: Set<unknown> }) | undefined = request.task
      ? await answerTask(request, request.task, { ...answering, service })
      : await answerGraphql(request, {
          ...answering,
          giveUpAt: performance.now() + patienceMs,
          contextOf: () => createQueryContext(service, request.token, request.requestId, budget),
          async admit({ operation }) {
            asked = operation && nameOfOperation(operation)
            return operation?.operation === 'mutation' && request.method === 'POST' ? NOT_HERE : {}
          },
        })
    running.delete(id)
    const costMs = time.end(begunAt)
    if (budget.isOver) {
      sessions.delete(session)
      endSession(session, tell).catch(error => log.warn({ err: error }, 'a connection was not closed'))
    } else idle.push(session)
    if (!answered) return tell({ kind: 'mutation', id })
    const { status, headers, codes } = answered
    const isEnded = gone.signal.aborted && codes.has(HUNG_UP)
    const body = String(answered.body ?? '')
    const cost = { costMs: isEnded ? undefined : costMs }
    const answer = { kind: 'answer', id, status, headers, codes, operation: asked, ...cost } as const
    if (body.length <= PART_CHARACTERS) return tell({ ...answer, body: Buffer.from(body) })
    bodySent = bodySent.then(() => {
      tell({ ...answer, body: Buffer.byteLength(body) })
      return send(body)
    })
  }

  const hear = (message: ToReader): void => {
    if (message.kind === 'gone') running.get(message.id)?.gone.abort(hungUp())
    if (message.kind === 'match') running.get(message.id)?.match()
    if (message.kind !== 'ask') return
    answer(message).catch(error => {
      log.error({ err: error }, 'a reader failed')
      end()
    })
  }
  const close = () => Promise.allSettled([...sessions].map(({ database }) => database.close()))
  return { hear, close }
}
