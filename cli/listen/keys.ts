import type { ReadStream } from 'node:tty'
import type { ScriptedResponse } from './scripted-responses.ts'

// What `listen` does at a key, where a person sits at it.

/** What the next delivery is answered with. */
const ANSWERS: Record<string, { response: ScriptedResponse; says: string }> = {
  '2': { response: { kind: 'status', statusCode: 200 }, says: '200' },
  '4': { response: { kind: 'status', statusCode: 400 }, says: '400' },
  '5': { response: { kind: 'status', statusCode: 500 }, says: '500' },
  '9': { response: { kind: 'status', statusCode: 429, retryAfterSeconds: 10 }, says: '429 with Retry-After: 10' },
  x: { response: { kind: 'reset' }, says: 'a broken connection' },
  h: { response: { kind: 'hang' }, says: 'nothing at all' },
}

export const KEYS_HELP =
  'Keys: r sends the last delivery again, d shows all of it; 2 4 5 9 answer the next one 200, 400, 500 or 429, ' +
  'x breaks it off, h leaves it waiting; q ends.'

export type KeyActions = {
  redeliver(): void
  details(): void
  answerNext(response: ScriptedResponse, says: string): void
  help(): void
  end(): void
}

/** Does what keys say, until what it returns is called. In between Ctrl-C is a key, and no signal. */
export const followKeys = (input: ReadStream, actions: KeyActions): (() => void) => {
  const press = (key: string): void => {
    const answer = ANSWERS[key]
    if (answer) actions.answerNext(answer.response, answer.says)
    else if (key === 'r') actions.redeliver()
    else if (key === 'd') actions.details()
    else if (key === 'q' || key === CTRL_C || key === CTRL_D) actions.end()
    else if (key === '?') actions.help()
  }
  const onData = (typed: Buffer): void => {
    // An arrow is a sequence, and no key of these.
    const text = typed.toString()
    if (!text.startsWith(ESCAPE)) for (const key of text) press(key)
  }
  input.setRawMode(true)
  input.on('data', onData)
  input.resume()
  return () => {
    input.off('data', onData)
    input.setRawMode(false)
    input.pause()
  }
}

const CTRL_C = '\u0003'
const CTRL_D = '\u0004'
const ESCAPE = '\u001b'
