import { pino } from 'pino'
import { codeOf } from '../shared/errors.ts'

export type Log = ReturnType<typeof createLog>

/**
 * JSON lines on stderr, because stdout belongs to a command's output. No secret is ever passed to it, and of an error
 * only what `errorFields` selects: some errors carry received data, others statements with values.
 */
export const createLog = (level: string) =>
  pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      redact: ['headers.authorization'],
      serializers: { err: errorFields },
    },
    pino.destination(2),
  )

/** Characters kept at each end of a message. */
const MESSAGE_ENDS = 400
const FRAMES = 12

type ErrorFields = { name?: string; code?: string | number; message: string; stack?: string; cause?: ErrorFields }

/** The logged fields of any error: its name, code, message, place and cause. */
export const errorFields = (error: unknown): ErrorFields => {
  if (!(error instanceof Error)) return { message: cleaned(String(error)) }
  const { name, message, stack = '', cause } = error
  const code = codeOf(error)
  const frames = stack.split('\n').filter(line => /^ {4}at \S/.test(line))
  return {
    name: cleaned(name),
    ...((typeof code === 'string' || typeof code === 'number') && {
      code: typeof code === 'string' ? cleaned(code) : code,
    }),
    message: cleaned(message),
    stack: frames.slice(0, FRAMES).map(cleaned).join('\n'),
    ...(cause instanceof Error && cause !== error && { cause: errorFields(cause) }),
  }
}

/** Text on one line, of bounded length. Keeps both ends: the beginning mostly has the subject, the end the cause. */
const cleaned = (text: string): string => {
  const short = text.length <= 2 * MESSAGE_ENDS ? text : `${text.slice(0, MESSAGE_ENDS)} … ${text.slice(-MESSAGE_ENDS)}`
  return short.replace(/\p{Cc}+/gu, ' ')
}

type Level = 'debug' | 'info' | 'warn' | 'error'
/** Lines of a kind written each minute; further ones are counted. */
const LINES_A_MINUTE = 10
const MINUTE_MS = 60_000

type Kind = { level: Level; message: string; written: number; counted: number }
const kindsOf = new WeakMap<Log, Map<string, Kind>>()

/**
 * Writes a line that strangers can cause in any number: the first ten a minute, and at the minute's end the number of
 * the others.
 *
 * @param kind what is counted together, one of a few words
 */
export const logSeldom = (log: Log, level: Level, kind: string, fields: object, message: string): void => {
  const kinds = kindsOf.get(log) ?? new Map<string, Kind>()
  kindsOf.set(log, kinds)
  let known = kinds.get(kind)
  if (!known) {
    known = { level, message, written: 0, counted: 0 }
    kinds.set(kind, known)
    setTimeout(() => logCounted(log, kind), MINUTE_MS).unref()
  }
  if (known.written === LINES_A_MINUTE) {
    known.counted += 1
    return
  }
  known.written += 1
  log[level](fields, message)
}

const logCounted = (log: Log, kind: string): void => {
  const known = kindsOf.get(log)?.get(kind)
  kindsOf.get(log)?.delete(kind)
  if (!known || known.counted === 0) return
  const { level, message, counted } = known
  log[level](
    { kind, more: counted },
    `${message}: … and ${counted.toLocaleString('en-GB')} more like it in the last minute`,
  )
}

/** Writes the pending counts before the process ends. */
export const logAllCounted = (log: Log): void => {
  for (const kind of [...(kindsOf.get(log)?.keys() ?? [])]) logCounted(log, kind)
}
