import { pino } from 'pino'

export type Log = ReturnType<typeof createLog>

/** JSON lines on stderr: stdout belongs to what a command prints. No secret is ever passed to it. */
export const createLog = (level: string) =>
  pino(
    { level, base: null, timestamp: pino.stdTimeFunctions.isoTime, redact: ['headers.authorization'] },
    pino.destination(2),
  )
