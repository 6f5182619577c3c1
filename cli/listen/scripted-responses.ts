import { usageError } from '../errors.ts'

/** What a rehearsing receiver does with a verified delivery. */
export type ScriptedResponse =
  | { kind: 'status'; statusCode: number; retryAfterSeconds?: number }
  /** Resets the connection without an answer. */
  | { kind: 'reset' }
  /** Never answers. */
  | { kind: 'hang' }

/**
 * A rehearsal as `--answer` takes it, such as `500,500,429:30,200`: status codes in order, 429 and 503 with a
 * Retry-After in seconds after a colon, `reset` and `hang`. Throws a CliError that names an invalid part.
 */
export const parseScriptedResponses = (text: string): ScriptedResponse[] =>
  text.split(',').map(part => {
    const word = part.trim()
    if (word === 'reset' || word === 'hang') return { kind: word }
    const [, status, seconds] = /^([2-5]\d\d)(?::(\d+))?$/.exec(word) ?? []
    if (!status) {
      throw usageError(
        `${JSON.stringify(word)} is not an answer to rehearse.`,
        'Give status codes from 200 to 599, 429:SECONDS for a 429 with Retry-After, reset or hang, such as: ' +
          '500,reset,429:30,200',
      )
    }
    return { kind: 'status', statusCode: Number(status), ...(seconds && { retryAfterSeconds: Number(seconds) }) }
  })
