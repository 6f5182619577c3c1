import { createInterface } from 'node:readline'
import { Writable } from 'node:stream'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { printable } from './neutralise.ts'

/** Questions go to stderr, so that they show even if stdout is piped. Both stdin and stderr must be a terminal. */
export const canAsk = (): boolean => process.stdin.isTTY === true && process.stderr.isTTY === true

/** Asks for a line of text; `fallback` is what an empty line means. */
export const ask = async (question: string, fallback?: string): Promise<string> => {
  const shown = printable(fallback === undefined ? `${question}: ` : `${question} [${fallback}]: `)
  const answer = (await readLine(shown)).trim()
  return answer === '' && fallback !== undefined ? fallback : answer
}

/** Asks for a secret; what is typed does not show. */
export const askSecret = async (question: string): Promise<string> => {
  const secret = await readLine(`${question}: `, { hidden: true })
  process.stderr.write('\n')
  return secret.trim()
}

const MORE = '\r\n '
const INTERRUPT = '\u0003'
/** q, ctrl-D, escape and ctrl-C. */
const ENOUGH = `qQ\u0004\u001b${INTERRUPT}`

/** Waits for a key below a list: true to continue, false to stop. */
export const askForMore = (text: string): Promise<boolean> =>
  new Promise(resolve => {
    const { stdin, stderr } = process
    stdin.setRawMode(true)
    stderr.write(`${text}  Enter: more  q: enough `)
    const listen = (keys: Buffer): void => {
      const key = keys.toString().charAt(0)
      if (!`${MORE}${ENOUGH}`.includes(key)) return
      stdin.off('data', listen)
      stdin.setRawMode(false)
      stdin.pause()
      // Erases the question before the next output.
      stderr.write('\r\u001b[K')
      if (key === INTERRUPT) process.kill(process.pid, 'SIGINT')
      resolve(MORE.includes(key))
    }
    stdin.on('data', listen).resume()
  })

/**
 * Confirms a dangerous action: by `--yes`, or by asking a person; without a terminal it is refused. Throws a CliError
 * unless confirmed.
 */
export const confirm = async (question: string, { yes }: { yes: boolean }): Promise<void> => {
  if (yes) return
  if (!canAsk()) throw usageError(`${question} There is no terminal to ask on.`, 'Confirm with --yes.')
  const answer = await ask(`${question} (y/N)`)
  if (!/^y(es)?$/i.test(answer))
    throw new CliError(exitCodes.failed, 'NOT_CONFIRMED', 'Not confirmed: nothing was done.')
}

/**
 * The terminal is in raw mode before the question shows: otherwise it would show a secret that is typed at once, and
 * turn a ctrl-D into a character of the answer.
 */
const readLine = (question: string, { hidden = false } = {}): Promise<string> =>
  new Promise((resolve, reject) => {
    const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() })
    const output = hidden ? nowhere : process.stderr
    const lines = createInterface({ input: process.stdin, output, terminal: true, prompt: question })
    let answered = false
    lines.once('line', line => {
      answered = true
      lines.close()
      resolve(line)
    })
    // Closing restores the terminal; then the signal acts as usual.
    lines.once('SIGINT', () => {
      answered = true
      lines.close()
      process.stderr.write('\n')
      process.kill(process.pid, 'SIGINT')
    })
    lines.once('close', () => {
      if (answered) return
      process.stderr.write('\n')
      reject(usageError('The input ended before an answer: nothing was done.', 'Run it again to be asked again.'))
    })
    lines.prompt()
    if (hidden) process.stderr.write(question)
  })
